"""Your own ServerApp, with dp_fedmed's strategy, sampler and ledger in the place of FedAvg."""

from __future__ import annotations

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import dp_fedmed as dp
from your_app.task import Net, accuracy

app = ServerApp()
DELTA = 1e-3  # well below one over the number of clients would be better: have more clients


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Accuracy on data that nobody trains on."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model)})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Ten private rounds; what they cost is on disk before each of them is sent."""
    settings = context.run_config
    rounds, clients = int(settings["rounds"]), int(settings["clients"])
    target = float(settings["epsilon"])
    folder = Path(str(settings["folder"]) or "your_run").absolute()

    torch.manual_seed(0)  # started again, it begins with the same model, and pays for nothing twice
    sampler = dp.PoissonSampler(rate=0.5)
    sigma = dp.calibrate(
        lambda sigma: [sampler.event(noise_multiplier=sigma, population=clients).times(rounds)],
        target_epsilon=target,
        target_delta=DELTA,
    )
    event = sampler.event(noise_multiplier=sigma, population=clients)
    mechanism = dp.ClientUpdates(event, max_norm=0.5, expected_cohort=sampler.expected(clients))
    with dp.RunLedger(
        folder, mechanism, rounds=rounds, delta=DELTA, target_epsilon=target
    ) as ledger:
        strategy = dp.DPStrategy(
            dp.RoundSettings(num_rounds=rounds),
            sampler=sampler,
            num_clients=clients,
            mechanism=mechanism,
            ledger=ledger,
            answers="weights",
        )
        result = strategy.start(grid, ArrayRecord(Net().state_dict()), evaluate_fn=evaluate)
        last = result.evaluate_metrics_serverapp[rounds]["accuracy"]
        print(f"accuracy {last:.3f}, ε = {ledger.epsilon:.2f} for one client (δ = {DELTA:g})")
