"""Secure aggregation: the server learns the sum of a round's contributions, and no single one.

The protocol is that of Bonawitz et al. (Practical Secure Aggregation, CCS 2017) with the sparse
graph of Bell et al. (CCS 2020), over integers modulo 2⁶⁴; one `SecureClient` and one
`SecureServer` serve one attempt at one round. It covers a server that follows the protocol and
looks at everything it gets, together with the agreed number of colluding clients. It does not
cover a server that departs from it, such as one that makes up clients or exchanges their keys:
keys are not signed.
"""

from typing import TYPE_CHECKING

from dp_fedmed.lazy import lazily

if TYPE_CHECKING:
    from dp_fedmed.federation.secure_aggregation.client import SecureClient as SecureClient
    from dp_fedmed.federation.secure_aggregation.client_state import ClientState as ClientState
    from dp_fedmed.federation.secure_aggregation.messages import Advertisement as Advertisement
    from dp_fedmed.federation.secure_aggregation.messages import Delivery as Delivery
    from dp_fedmed.federation.secure_aggregation.messages import MaskedSum as MaskedSum
    from dp_fedmed.federation.secure_aggregation.messages import Revealed as Revealed
    from dp_fedmed.federation.secure_aggregation.messages import Roster as Roster
    from dp_fedmed.federation.secure_aggregation.messages import SealedShares as SealedShares
    from dp_fedmed.federation.secure_aggregation.messages import UnmaskRequest as UnmaskRequest
    from dp_fedmed.federation.secure_aggregation.messages import add_up as add_up
    from dp_fedmed.federation.secure_aggregation.server import SecureServer as SecureServer
    from dp_fedmed.federation.secure_aggregation.server import ServerState as ServerState
    from dp_fedmed.federation.secure_aggregation.server import Stage as Stage
    from dp_fedmed.federation.secure_aggregation.terms import Terms as Terms

__getattr__, __dir__, __all__ = lazily(
    __name__,
    {
        "client": ("SecureClient",),
        "client_state": ("ClientState",),
        "messages": (
            *("Advertisement", "Delivery", "MaskedSum", "Revealed", "Roster", "SealedShares"),
            *("UnmaskRequest", "add_up"),
        ),
        "server": ("SecureServer", "ServerState", "Stage"),
        "terms": ("Terms",),
    },
)
