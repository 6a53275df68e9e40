import ApusClient
import ApusCore
import ApusLocal
import ApusSessions
import Synchronization

/// A client of the benchmark with kills. It can sign in again, at the node where it began.
///
/// Concurrency model: any thread. A `Mutex` guards the present client.
final class CallSeat: Sendable {
    let account: AccountID
    let access: AccessID
    /// Nil for an app.
    let device: DeviceID?
    /// The node at which it signs in.
    let node: String
    private let state: Mutex<CallBenchClient>
    /// What its earlier clients have seen.
    private let earlier = Mutex(CallBenchClient.Faults())

    init(
        _ access: String, isDevice: Bool = false, account: String, at node: String, _ stage: SignInStage
    ) async throws(ApusError) {
        (self.access, self.account, self.node) = (
            AccessID(unchecked: access), AccountID(unchecked: account), node
        )
        device = isDevice ? DeviceID(unchecked: access) : nil
        state = Mutex(try await Self.signIn(self.access, self.account, device, node, stage))
    }

    private static func signIn(
        _ access: AccessID, _ account: AccountID, _ device: DeviceID?, _ node: String, _ stage: SignInStage
    ) async throws(ApusError) -> CallBenchClient {
        CallBenchClient(
            try await stage.session(
                device == nil ? .app : .device, access, account: account, device: device, first: node))
    }

    var client: CallBenchClient { state.withLock { $0 } }
    var session: ClientSession { client.session }

    /// The client is not at its node any more.
    func isAway(_ stage: SignInStage) async -> Bool {
        guard let home = try? stage.local.endpoint(of: node) else { return false }
        return await session.currentEndpoint() != home
    }

    /// Ends the session, and signs in at the seat's node.
    func signInAgain(_ stage: SignInStage) async throws -> CallBenchClient {
        let old = client
        let faults = old.faults
        earlier.withLock { $0.add(faults) }
        old.session.close()
        let new = try await Self.signIn(access, account, device, node, stage)
        state.withLock { $0 = new }
        return new
    }

    /// Of all its clients.
    var faults: CallBenchClient.Faults {
        var sum = earlier.withLock { $0 }
        sum.add(client.faults)
        return sum
    }
}

extension CallBenchClient.Faults {
    mutating func add(_ other: Self) {
        ghostRings += other.ghostRings
        lateNotices += other.lateNotices
    }
}
