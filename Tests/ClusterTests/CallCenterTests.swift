import ApusClient
import ApusContract
import ApusCore
import Synchronization
import Testing

/// A view that notes what is called, and does what its script says.
private final class ScriptedInterface: CallInterface {
    let steps = Mutex<[String]>([])
    private let actions = Mutex<CallActions?>(nil)
    private let failure: ApusError?
    let isIncoming: Bool

    init(failure: ApusError? = nil, isIncoming: Bool) { (self.failure, self.isIncoming) = (failure, isIncoming) }

    private func note(_ step: String) { steps.withLock { $0.append(step) } }

    var executor: CallActions? { actions.withLock { $0 } }

    func setUp(for call: CallCenter.Entry, actions: CallActions) async throws(ApusError) {
        self.actions.withLock { $0 = actions }
        note("setUp")
        if let failure { throw failure }
    }

    func present() async { note("present") }
    func callPeerDidRespond() async { note("responded") }
    func executeHeavyTasksCompleted() async { note("accepted") }
    func callEnd(with error: ApusError?) async { note("end \(error?.code.number ?? 0)") }
    func dismiss() async { note("dismiss") }
}

private final class ScriptedManager: CallInterfaceManager {
    let identifier: String
    let views = Mutex<[String: ScriptedInterface]>([:])
    private let failure: ApusError?

    init(_ identifier: String = "screen_ipc", failure: ApusError? = nil) {
        (self.identifier, self.failure) = (identifier, failure)
    }

    func makeInterface(for call: CallCenter.Entry) async -> any CallInterface {
        let view = ScriptedInterface(failure: failure, isIncoming: !call.isOutgoing)
        views.withLock { $0[call.id] = view }
        return view
    }

    /// The view of a call, once it has done these steps.
    func view(_ call: String, after step: String) async throws -> ScriptedInterface {
        for _ in 0..<1000 {
            if let view = views.withLock({ $0[call] }), view.steps.withLock({ $0.contains(step) }) { return view }
            try await Task.sleep(for: .milliseconds(10))
        }
        throw ApusError(.deadlineExceeded, "\(step)")
    }
}

/// A client whose calls a center shows.
private final class CenterClient: Sendable {
    let session: ClientSession
    let center: CallCenter
    let manager: ScriptedManager
    private let work: Task<Void, Never>

    init(_ cluster: Cluster, _ node: Int, device: String? = nil, failure: ApusError? = nil) throws {
        let token =
            try device.map { try cluster.token("--role", "device", "--device", $0) }
            ?? cluster.token("--role", "app", "--access", "phone")
        session = try cluster.session(node: node, token: token, role: device == nil ? .app : .device)
        center = CallCenter(session: session)
        manager = ScriptedManager(failure: failure)
        work = Task { [center] in try? await center.run() }
    }

    func close() {
        work.cancel()
        session.close()
    }
}

@Suite("The call interface of an app (CALL-2, CALL-9, CALL-12)", .serialized, .timeLimit(.minutes(2)))
struct CallCenterTests {
    private static let bell = DeviceID(unchecked: "bell")

    @Test(
        "Each view is called once for each step, in order; without a manager a call fails with −2504 (CALL-2, CALL-12)")
    func steps() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_350)
        defer { cluster.down() }
        let bell = try CenterClient(cluster, 1, device: "bell")
        let phone = try CenterClient(cluster, 2)
        defer { for client in [bell, phone] { client.close() } }
        await fails(.callInterfaceMissing) { () throws(ApusError) in
            _ = try await phone.center.startCall(to: [.device(Self.bell)], identifier: "screen_ipc")
        }
        phone.center.register(phone.manager)

        // The bell has no manager: the call is reported there, and not shown.
        let unseen = try await eventually { () throws(ApusError) in
            try await phone.center.startCall(to: [.device(Self.bell)], identifier: "screen_ipc")
        }
        let invalid = await bell.center.invalidCalls.first { $0.id == unseen.id }
        #expect(invalid?.source == .connection && invalid?.error.code == .callInterfaceMissing)
        let busy = try await phone.manager.view(unseen.id, after: "dismiss")
        #expect(busy.steps.withLock { $0.last { $0.hasPrefix("end") } } == "end -2511")
        bell.center.register(bell.manager)

        let call = try await eventually { () throws(ApusError) in
            try await phone.center.startCall(
                to: [.device(Self.bell)], identifier: "screen_ipc", extra: #"{"channelType":1,"keepConnect":false}"#)
        }
        let ringing = try await bell.manager.view(call.id, after: "present")
        #expect(bell.center.isOnCalling && phone.center.isOnCalling)
        await fails(.onCalling) { () throws(ApusError) in
            _ = try await phone.center.startCall(to: [.device(Self.bell)], identifier: "screen_ipc")
        }
        try await ringing.executor?.onAccept()
        let calling = try await phone.manager.view(call.id, after: "accepted")
        for view in [ringing, calling] { try await view.executor?.onConnected() }
        try await calling.executor?.onHangUp()
        _ = try await bell.manager.view(call.id, after: "dismiss")
        #expect(ringing.steps.withLock { $0 } == ["setUp", "present", "accepted", "end -2513", "dismiss"])
        _ = try await phone.manager.view(call.id, after: "dismiss")
        let steps = ["setUp", "present", "responded", "accepted", "end 0", "dismiss"]
        #expect(calling.steps.withLock { $0 } == steps)
        #expect(!bell.center.isOnCalling)

        await phone.center.received(push: "no call")
        let pushed = await phone.center.invalidCalls.first { $0.source == .push }
        #expect(pushed?.error.code == .callDataInvalid)
    }

    @Test("Of two calls that cross, one rings at the other side and can be accepted (CALL-8, CALL-12)")
    func crossing() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_260)
        defer { cluster.down() }
        let bell = try CenterClient(cluster, 1, device: "bell")
        let phone = try CenterClient(cluster, 2)
        defer { for client in [bell, phone] { client.close() } }
        for client in [bell, phone] { client.center.register(client.manager) }
        let local = AccountID(unchecked: "local")
        for round in 0..<4 {
            async let one = try? phone.center.startCall(to: [.device(Self.bell)], identifier: "screen_ipc")
            async let other = try? bell.center.startCall(to: [.account(local)], identifier: "screen_ipc")
            let calls = await [one, other].compactMap(\.self)
            var accepted = false
            for _ in 0..<200 where !accepted && !calls.isEmpty {
                for (called, call) in [bell, phone].flatMap({ client in calls.map { (client, $0) } }) {
                    guard let view = called.manager.views.withLock({ $0[call.id] }), view.isIncoming,
                        (try? await view.executor?.onAccept()) != nil
                    else { continue }
                    accepted = true
                    let caller = called === bell ? phone : bell
                    _ = try await caller.manager.view(call.id, after: "accepted")
                    try await view.executor?.onHangUp()
                    _ = try await caller.manager.view(call.id, after: "dismiss")
                    break
                }
                try await Task.sleep(for: .milliseconds(50))
            }
            // In the first rounds a client may not take calls yet.
            #expect(accepted || calls.isEmpty, "round \(round): no call of \(calls.map(\.id)) can be accepted")
            for client in [bell, phone] {
                for _ in 0..<200 where client.center.isOnCalling { try await Task.sleep(for: .milliseconds(50)) }
            }
        }
    }

    @Test(
        "A view that cannot be shown ends its call; a network change is an exception for the other side (CALL-14)"
    )
    func failures() async throws {
        let cluster = try Cluster(nodes: 3, basePort: 32_320)
        defer { cluster.down() }
        let bell = try CenterClient(cluster, 1, device: "bell", failure: ApusError(.unavailable))
        let phone = try CenterClient(cluster, 2)
        defer { for client in [bell, phone] { client.close() } }
        for client in [bell, phone] { client.center.register(client.manager) }
        let call = try await eventually { () throws(ApusError) in
            try await phone.center.startCall(to: [.device(Self.bell)], identifier: "screen_ipc")
        }
        let rejected = try await phone.manager.view(call.id, after: "dismiss")
        #expect(rejected.steps.withLock { $0.last { $0.hasPrefix("end") } } == "end -2512")
        #expect(await bell.center.invalidCalls.first { $0.id == call.id }?.error.code == .unavailable)

        let other = try CenterClient(cluster, 3, device: "other")
        defer { other.close() }
        other.center.register(other.manager)
        let second = try await eventually { () throws(ApusError) in
            try await phone.center.startCall(to: [.device(DeviceID(unchecked: "other"))], identifier: "screen_ipc")
        }
        let view = try await other.manager.view(second.id, after: "present")
        try await view.executor?.onAccept()
        try await phone.manager.view(second.id, after: "accepted").executor?.onException(.networkChanged)
        _ = try await other.manager.view(second.id, after: "dismiss")
        #expect(view.steps.withLock { $0.contains("end -2533") })
    }
}
