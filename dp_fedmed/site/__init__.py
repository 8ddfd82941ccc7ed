"""One site: its runtime, its own ledger, rules and keys."""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.site.keys import client_folder as client_folder
    from dp_fedmed.site.keys import client_key as client_key
    from dp_fedmed.site.keys import client_ledger_key as client_ledger_key
    from dp_fedmed.site.ledger import Asked as Asked
    from dp_fedmed.site.ledger import Budget as Budget
    from dp_fedmed.site.ledger import ClientLedger as ClientLedger
    from dp_fedmed.site.records import refuse_unfit as refuse_unfit
    from dp_fedmed.site.rules import SiteRules as SiteRules
    from dp_fedmed.site.runtime import ClientRuntime as ClientRuntime

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "keys": ("client_folder", "client_key", "client_ledger_key"),
        "ledger": ("Asked", "Budget", "ClientLedger"),
        "records": ("refuse_unfit",),
        "rules": ("SiteRules",),
        "runtime": ("ClientRuntime",),
    },
)
