"""The Flower ClientApp: one site. It tells its name, trains, evaluates; it keeps its records."""

from __future__ import annotations

import json
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from dp_fedmed.assemble import client_runtime
from dp_fedmed.config import Config, from_run_config
from dp_fedmed.site.answers import answer, check_ready, introduce
from dp_fedmed.site.rules import SiteRules
from dp_fedmed.site.runtime import ClientRuntime

Handler = Callable[[Message, Context], Message]


def build_client_app(
    config: Config | None = None, runtime: ClientRuntime | None = None
) -> ClientApp:
    """The ClientApp for a configuration; without one, for Flower's run-config.

    Args:
        config: the run's configuration, when the caller has it.
        runtime: a runtime to use in this process and in those forked from it.
    """
    app = ClientApp()
    made: dict[str, ClientRuntime] = {}

    def runtime_for(context: Context) -> ClientRuntime:
        rules = SiteRules.of(context.node_config)
        if runtime is not None:
            rules.check(runtime.config)
            return runtime
        key = f"{context.run_id} {json.dumps(dict(context.run_config), sort_keys=True)}"
        if key not in made:
            made.clear()  # one federation at a time: a changed run-config frees the old data
            composed = config or from_run_config(context.run_config, run_id=context.run_id)
            rules.check(composed)
            made[key] = client_runtime(composed)
        return made[key]

    @app.query("name")
    def name(message: Message, context: Context) -> Message:
        return introduce(message, context, runtime_for)

    @app.query("ready")
    def ready(message: Message, context: Context) -> Message:
        return check_ready(message, context, runtime_for)

    def on(verb: str, work: Callable[[ClientRuntime, Message, Context], RecordDict]) -> Handler:
        return lambda message, context: answer(verb, work, message, context, runtime_for)

    app.query("keys")(on("tell its keys", lambda site, *said: site.masks.advertise(*said)))
    app.query("shares")(on("share its secrets", lambda site, *said: site.masks.share(*said)))
    app.query("unmask")(on("help to unmask", lambda site, *said: site.masks.unmask(*said)))
    app.train()(on("train", ClientRuntime.train))
    app.evaluate()(on("evaluate", ClientRuntime.evaluate))

    return app


app = build_client_app()
