package import ApusCore
package import ApusTraversal
import Synchronization

/// A change of what the standby is to have.
package enum MirrorChange: Sendable, Hashable {
    /// The allocation's state is this; what was known under the other number is it too.
    case kept(AllocationMirror, replacing: MobilityTicket?)
    case ended(MobilityTicket)
}

/// What one user has at a node's relay.
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

/// Where a relay stands, for operators.
package struct RelayStanding: Sendable {
    package var allocations = 0
    package var mirrors = 0
    package var isDraining = false
    /// Of all that the relay carried since its start, and what it dropped.
    package var traffic = RelayTraffic()
    /// Users with an allocation, those that carried most first; at most ``RelayServer/standingUsersMax``.
    package var users: [RelayUsage] = []
    package var userCount = 0

    package init() {}
}

/// What the control thread tells the rest of its node. Whoever takes it must hand it on and return.
package enum RelayNews: Sendable {
    case mirrors([MirrorChange])
    /// A client came with an authentic ticket of an allocation that is not here; answer with `claimed`.
    case claim(UInt32, MobilityTicket, username: String)
    /// An allocation of that life of a node goes on here.
    case revived(MobilityTicket, home: UInt64)
    /// How many allocations users have here: those of all, or of users whose number changed (0: none any more). At
    /// most once a second.
    case usage([RelayUsage], isWhole: Bool)
}

/// What an operator may change while the relay runs.
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

/// What the rest of a node tells its relay's control thread.
package enum RelayOrder: Sendable {
    /// Another node's allocations changed.
    case mirrored([MirrorChange])
    /// Tell every mirror anew: there is another standby.
    case tellMirrors
    /// Give up what is here of a ticket; the answer is called on the control thread.
    case surrender(MobilityTicket, username: String, answer: @Sendable (AllocationMirror?) -> Void)
    case claimed(UInt32, AllocationMirror?)
    /// An allocation of this node goes on at another.
    case movedAway(MobilityTicket)
    /// Allocations of users at all other nodes together.
    case othersHave([String: Int])
    /// The cluster's other nodes are at these addresses: where this one reaches them, and what they tell of themselves.
    case othersAreAt(reached: [TransportAddress], told: [TransportAddress], relays: [TransportAddress])
    /// The node leaves; new clients are to go there.
    case drain(RelayAlternate?)
    /// Allocations of these user names end, and no credentials of theirs are taken.
    case revoked(@Sendable (_ username: String) -> Bool)
    /// Which allocations there are; called on the control thread.
    case sessions(RelaySelection, @Sendable (RelaySessions) -> Void)
    /// Ends allocations; told how many on the control thread.
    case end(RelaySelection, @Sendable (Int) -> Void)
    /// Other secrets, users and rules for peers.
    case rules(RelayRules)
    /// Other rules for peers.
    case peers(PeerPolicy)
    /// How the relay stands; called on the control thread.
    case standing(@Sendable (RelayStanding) -> Void)
}

/// Orders on their way to the control thread. Bounded; one more is refused.
///
/// Concurrency model: ``push(_:)`` from any thread, ``take()`` by the control thread.
package final class RelayInbox: Sendable {
    /// Orders that wait at most. The control thread takes all of them many times a second.
    package static let ordersMax = 4_096

    private struct State {
        var waiting: [RelayOrder] = []
        var isClosed = false
    }

    private let state = Mutex(State())

    package init() {}

    /// False if as many wait as may, and once it is closed.
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

    /// Takes no more, and answers the questions that wait: nothing is here any more.
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
            case .mirrored, .tellMirrors, .claimed, .movedAway, .othersHave, .othersAreAt, .drain, .revoked, .rules,
                .peers:
                break
            }
        }
    }

    var isEmpty: Bool { state.withLock(\.waiting.isEmpty) }
}
