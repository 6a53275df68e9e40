package import ApusTraversal
import Synchronization

/// A change of what the standby must store.
package enum MirrorChange: Sendable, Hashable {
    /// The allocation has this state, which also replaces the state under the other number.
    case kept(AllocationMirror, replacing: MobilityTicket?)
    case ended(MobilityTicket)
}

/// The usage of one user at a node's relay.
package struct RelayUsage: Sendable, Hashable {
    package var user: String
    package var allocations: Int
    package var traffic: RelayTraffic

    package init(user: String, allocations: Int, traffic: RelayTraffic = RelayTraffic()) {
        self.user = user
        self.allocations = allocations
        self.traffic = traffic
    }
}

/// The state of a relay, for operators.
package struct RelayStanding: Sendable {
    package var allocations = 0
    package var mirrors = 0
    package var isDraining = false
    /// All traffic since the relay's start, and the dropped packets.
    package var traffic = RelayTraffic()
    /// Users with an allocation, those with the most traffic first; at most ``RelayServer/standingUsersMax``.
    package var users: [RelayUsage] = []
    package var userCount = 0

    package init() {}
}

/// Events that the control thread sends to the rest of its node. A receiver must pass them on and return.
package enum RelayNews: Sendable {
    case mirrors([MirrorChange])
    /// A client has an authentic ticket of an allocation that is not here. Answer with `claimed`.
    case claim(UInt32, MobilityTicket, username: String)
    /// An allocation of that incarnation of a node continues here.
    case revived(MobilityTicket, home: UInt64)
    /// The users' numbers of allocations here: of all users, or of those whose number changed (0: none any more). At
    /// most once a second.
    case usage([RelayUsage], isWhole: Bool)
}

/// The rules that an operator can change while the relay runs.
package struct RelayRules: Sendable {
    package var credentials: RelayCredentials
    package var users: StaticUsers
    package var peers: PeerPolicy

    package init(credentials: RelayCredentials, users: StaticUsers, peers: PeerPolicy) {
        self.credentials = credentials
        self.users = users
        self.peers = peers
    }
}

/// Orders from the rest of a node to its relay's control thread.
package enum RelayOrder: Sendable {
    /// Another node's allocations changed.
    case mirrored([MirrorChange])
    /// Send every mirror again: the standby changed.
    case tellMirrors
    /// Surrender the allocation or mirror of a ticket. `answer` is called on the control thread.
    case surrender(MobilityTicket, username: String, answer: @Sendable (AllocationMirror?) -> Void)
    case claimed(UInt32, AllocationMirror?)
    /// An allocation of this node continues at another.
    case movedAway(MobilityTicket)
    /// The users' allocations at all other nodes together.
    case othersHave([String: Int])
    /// The addresses of the cluster's other nodes: those at which this node reaches them, and those that they report.
    case othersAreAt(reached: [TransportAddress], reported: [TransportAddress], relays: [TransportAddress])
    /// The node leaves. New clients are redirected there.
    case drain(RelayAlternate?)
    /// The node does not leave after all. New clients are accepted again.
    case undrain
    /// Credentials of these user names are refused from now on, and their allocations end.
    case revoked(@Sendable (_ username: String) -> Bool)
    /// Lists allocations. The closure is called on the control thread.
    case sessions(RelaySelection, @Sendable (RelaySessions) -> Void)
    /// Ends allocations. The closure is called with their number on the control thread.
    case end(RelaySelection, @Sendable (Int) -> Void)
    /// Other secrets, users and rules for peers.
    case rules(RelayRules)
    /// Other rules for peers.
    case peers(PeerPolicy)
    /// The state of the relay. The closure is called on the control thread.
    case standing(@Sendable (RelayStanding) -> Void)
}

/// The queue of orders for the control thread. Bounded; further orders are refused.
///
/// Concurrency model: ``push(_:)`` from any thread, ``take()`` by the control thread.
package final class RelayInbox: Sendable {
    /// The most waiting orders. The control thread takes all of them many times a second.
    package static let ordersMax = 4_096

    private struct State {
        var waiting: [RelayOrder] = []
        var isClosed = false
    }

    private let state = Mutex(State())

    package init() {}

    /// Returns false if the queue is full or closed.
    package func push(_ order: RelayOrder) -> Bool {
        state.withLock { state in
            guard !state.isClosed, state.waiting.count < Self.ordersMax else { return false }
            state.waiting.append(order)
            return true
        }
    }

    func take() -> [RelayOrder] {
        state.withLock { state in
            defer { state.waiting = [] }
            return state.waiting
        }
    }

    /// Accepts no more orders, and answers waiting queries with empty results.
    func close() {
        let left = state.withLock { state in
            state.isClosed = true
            defer { state.waiting = [] }
            return state.waiting
        }
        for order in left {
            switch order {
            case .surrender(_, _, let answer): answer(nil)
            case .standing(let answer): answer(RelayStanding())
            case .sessions(_, let answer): answer(RelaySessions())
            case .end(_, let answer): answer(0)
            case .mirrored, .tellMirrors, .claimed, .movedAway, .othersHave, .othersAreAt, .drain, .undrain, .revoked,
                .rules, .peers:
                break
            }
        }
    }

    var isEmpty: Bool { state.withLock(\.waiting.isEmpty) }
}
