import ApusClient
import ApusContract
import ApusCore
import ApusMedia
import NIOCore
import Synchronization
import Testing

/// A session that notes the notices of its calls.
final class CallClient: Sendable {
    let session: ClientSession
    /// The device that the client is; nil for an app.
    let device: DeviceID?
    private let seen = Mutex<[ClientSession.CallNotice]>([])
    private let work = Mutex<Task<Void, Never>?>(nil)

    /// - Parameter ports: where the client connects first; empty for the listeners of the nodes, that of `node` first.
    init(
        _ cluster: Cluster, _ node: Int, device: String? = nil, access: String = "app", account: String = "local",
        ports: [Int] = []
    ) throws {
        self.device = device.map { DeviceID(unchecked: $0) }
        let token =
            try device.map { try cluster.token("--role", "device", "--device", $0, "--account", account) }
            ?? cluster.token("--role", "app", "--access", access, "--account", account)
        session = try cluster.session(node: node, token: token, role: device == nil ? .app : .device, ports: ports)
        let task = Task { [weak self, session] in
            do { for try await notice in session.calls() { self?.seen.withLock { $0.append(notice) } } } catch {}
        }
        work.withLock { $0 = task }
    }

    /// A device at node 1, and an app of its account at node 2.
    static func pair(
        _ cluster: Cluster, device: String = "bell", account: String = "local"
    ) async throws -> (bell: CallClient, app: CallClient) {
        let bell = try await CallClient(cluster, 1, device: device, account: account).ready()
        return (bell, try await CallClient(cluster, 2, access: "phone", account: account).ready())
    }

    /// Waits until the client takes calls: before that it cannot call either.
    func ready() async throws -> CallClient {
        try await eventually { () throws(ApusError) in
            do throws(ApusError) {
                _ = try await session.startCall(to: [.device(DeviceID(unchecked: "nobody"))])
            } catch {
                guard error.code == .callRequestFailed else { throw error }
            }
        }
        return self
    }

    func close() {
        work.withLock { $0?.cancel() }
        session.close()
    }

    func notices(of call: String) -> [ClientSession.CallNotice] { seen.withLock { $0.filter { $0.call == call } } }

    /// Places a call as soon as this client and the called ones take calls.
    func start(
        _ targets: [ClientSession.CallParty], type: ClientSession.CallType = .oneToOne,
        timeout: Duration = .seconds(30), extra: String = ""
    ) async throws -> ClientSession.Call {
        try await eventually { () throws(ApusError) in
            try await self.session.startCall(to: targets, type: type, timeout: timeout, extra: extra)
        }
    }

    /// Calls a device, and waits until it rings.
    func ring(_ device: CallClient) async throws -> String {
        let call = try await start([.device(try #require(device.device))]).id
        _ = try await device.next(call) { if case .ring = $0.stage { true } else { false } }
        _ = try await next(call) { $0.stage == .ringing }
        return call
    }

    func next(
        _ call: String, _ isWanted: (ClientSession.CallNotice) -> Bool
    ) async throws -> ClientSession.CallNotice {
        for _ in 0..<1000 {
            if let notice = notices(of: call).first(where: isWanted) { return notice }
            try await Task.sleep(for: .milliseconds(10))
        }
        throw ApusError(.deadlineExceeded, "\(notices(of: call))")
    }

    /// The number with which the call has ended; nil for a normal end.
    func end(_ call: String) async throws -> ApusError? {
        let notice = try await next(call) { if case .ended = $0.stage { true } else { false } }
        if case .ended(let error, _) = notice.stage { return error }
        return nil
    }

    /// The same, if it ends within half a second.
    func endIfAny(_ call: String) async throws -> ApusError? {
        for _ in 0..<50 {
            for case .ended(let error, _) in notices(of: call).map(\.stage) { return error }
            try await Task.sleep(for: .milliseconds(10))
        }
        return nil
    }
}

/// One side of a call: sends numbered frames, and notes what arrives.
final class CallSide: Sendable {
    private struct State {
        var frames: [MediaFrame] = []
        var publisherEnd: ApusError?
        var playerEnd: ApusError?
    }

    private let name: String
    private let publisher: Publisher
    private let player: Player
    private let state: Shared

    private final class Shared: Sendable {
        let value = Mutex(State())
    }

    init(_ session: ClientSession, call: String, name: String) {
        let state = Shared()
        (self.state, self.name) = (state, name)
        publisher = Publisher(
            session: session, call: call,
            onEvent: { event in
                if case .ended(let error) = event { state.value.withLock { $0.publisherEnd = error } }
            })
        player = Player(
            session: session, call: call, onFrame: { frame in state.value.withLock { $0.frames.append(frame) } },
            onEvent: { event in
                if case .ended(let error) = event { state.value.withLock { $0.playerEnd = error } }
            })
        publisher.start()
        player.start()
    }

    /// Sends frames, 20 ms apart.
    func send(_ count: Int, byteCount: Int = 100_000) async throws {
        for number in 0..<count {
            publisher.send(
                track: 0, ptsMicroseconds: Int64(number) * 20_000, dtsDeltaMicroseconds: 0, flags: .key,
                payload: ByteBuffer(string: name + String(repeating: "-", count: byteCount)))
            try await Task.sleep(for: .milliseconds(20))
        }
    }

    /// Sends one frame of this size.
    func send(byteCount: Int) {
        publisher.send(
            track: 0, ptsMicroseconds: 0, dtsDeltaMicroseconds: 0, flags: .key,
            payload: ByteBuffer(repeating: 0, count: byteCount))
    }

    func stop() {
        publisher.stop()
        player.stop()
    }

    /// The frames of the other side that have arrived, and how many are missing between them.
    var received: (count: Int, lostCount: Int, senders: Set<String>) {
        state.value.withLock { state in
            let numbers = state.frames.map(\.header.position.sequence)
            let lost = zip(numbers, numbers.dropFirst()).reduce(0) { $0 + Int($1.1) - Int($1.0) - 1 }
            let senders = state.frames.map { String(buffer: $0.payload).prefix { $0 != "-" } }
            return (numbers.count, lost, Set(senders.map(String.init)))
        }
    }

    /// The number of the newest frame of the other side.
    var newest: UInt64? { state.value.withLock { $0.frames.last?.header.position.sequence } }

    /// How both directions have ended, within the time.
    func ends(within time: Duration) async throws -> (publisher: ApusError?, player: ApusError?) {
        let deadline = MonotonicTime.now() + time
        while true {
            let ends = state.value.withLock { ($0.publisherEnd, $0.playerEnd) }
            guard MonotonicTime.now() < deadline, ends.0 == nil || ends.1 == nil else { return ends }
            try await Task.sleep(for: .milliseconds(10))
        }
    }
}
