import ApusCalls
import ApusCluster
import ApusCore

/// A client that takes calls: a device, or an app of an account.
final class SimulatedPhone {
    /// A report that is repeated until it is answered.
    struct Report: Hashable {
        var kind: CallEventKind
        var stage = CallStage.unspecified
    }

    /// Its part in a call.
    struct Part {
        var isCaller = false
        var isRinging = false
        var hasAccepted = false
        /// The number of the end; nil while it goes on.
        var end: Int32?
        /// Whom it talks to.
        var peer: CallParty?
        var waiting: Set<Report> = []
        /// When it last learned something.
        var changedMs: Int64 = 0
    }

    let party: CallParty
    let endpoint: AccessID
    /// The node that it is connected to; nil: none.
    var node: EntityNode?
    /// The number of the connection at its node.
    var number: UInt64 = 0
    /// What its party has given the connection; 0: nothing yet.
    var session: UInt64 = 0
    /// The epoch of the party under which it was announced last.
    var announcedUnder: Epoch = 0
    /// It never comes back.
    var isGone = false
    /// Since when it is connected without a break.
    var connectedMs: Int64 = 0
    /// By the number of the call.
    var parts: [Int: Part] = [:]

    init(_ party: CallParty, _ endpoint: AccessID) { (self.party, self.endpoint) = (party, endpoint) }

    var isListening: Bool { node != nil && session != 0 }
    /// The calls in which it takes part now.
    var active: [Int] { parts.keys.filter { parts[$0]?.end == nil }.sorted() }
}

/// A call that a client has placed, and what is known of it.
struct SimulatedPhoneCall {
    /// What clients have learned. Every later owner must know it too.
    struct Seen {
        /// The party of the winner.
        var winner: CallParty?
        /// Endpoints that were notified of the call by way of its owner.
        var called: Set<String> = []
        /// By endpoint, the number of the end.
        var ends: [String: Int32] = [:]
    }

    let id: CallID
    let address: EntityAddress
    let place: CallPlace
    /// After the faults: calls a party that must be free.
    let isProbe: Bool
    /// The parties are claimed before the call is placed.
    let isClaimedAhead: Bool
    /// The caller has an answer.
    var isAcknowledged = false
    var seen = Seen()
    /// The newest confirmed state; nil: none.
    var confirmed: CallState?
    /// The state in its record.
    var written: CallState?
    /// Endpoints that a push has reached.
    var pushed: Set<String> = []
    /// It was probed, and the called party has rung.
    var hasRung = false
}
