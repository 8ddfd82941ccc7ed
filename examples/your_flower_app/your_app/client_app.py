"""Your own ClientApp: it receives weights, trains, and answers weights."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from your_app.task import Net, train, train_part

app = ClientApp()


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Train on this client's records."""
    node = context.node_config
    images, labels = train_part(int(node["partition-id"]), int(node["num-partitions"]))
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss = train(model, images, labels, lr=0.5, epochs=10)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(labels)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
