import ApusCore
import ApusSessions
import Testing

/// What the machine of an edge said, so that a test can compare it.
enum Said: Equatable {
    case end([Int], ErrorCode)
    case confirm([Int])
    case ask(EdgeAsk.Content, String)
    case wait(Duration)
}

/// A machine of an edge, with the asks that it made.
struct EdgeBench {
    typealias Machine = EdgeSessionStateMachine<Int>

    static let camera = DeviceID(unchecked: "cam")
    static let other = DeviceID(unchecked: "other")

    var machine: Machine
    var now = MonotonicTime.zero
    /// Those that are under way, the oldest first.
    private(set) var asks: [EdgeAsk] = []
    private(set) var waits: [EdgeWait] = []

    init(_ configure: (inout Machine.Configuration) -> Void = { _ in }) {
        var configuration = Machine.Configuration()
        configure(&configuration)
        machine = Machine(configuration: configuration)
    }

    static func session(
        _ id: String, role: Session.Role = .app, device: DeviceID? = nil, instance: UInt64 = 7,
        order: SessionOrder = .none
    ) -> Session {
        Session(
            id: id, role: role, access: AccessID(unchecked: "access"), account: AccountID(unchecked: "acme"),
            device: device, sinceMilliseconds: 1, instance: instance, order: order,
            token: TokenMark(tag: TokenMark.tag(of: id), issuedAt: 0, expires: .max))
    }

    static func order(_ sequence: UInt64, epoch: Epoch = 1) -> SessionOrder {
        SessionOrder(epoch: epoch, sequence: sequence)
    }

    /// Of the identity of ``session(_:role:device:instance:order:)``.
    static var shard: ShardID { ShardID(key: session("s").entityKey) }

    mutating func said(_ actions: [Machine.Action]) -> [Said] {
        actions.map { action in
            switch action {
            case .end(let links, let error): return .end(links, error.code)
            case .confirm(let links): return .confirm(links)
            case .ask(let ask):
                asks.append(ask)
                return .ask(ask.content, ask.session.id)
            case .wait(let wait):
                waits.append(wait)
                return .wait(wait.until - now)
            }
        }
    }

    /// The oldest ask that is under way is answered.
    mutating func answer(_ answer: EdgeAnswer) -> [Said] {
        guard !asks.isEmpty else { return [] }
        return said(machine.answered(asks.removeFirst(), answer, now: now))
    }

    mutating func fail(_ code: ErrorCode = .deadlineExceeded) -> [Said] { answer(.failed(ApusError(code))) }

    /// The oldest pause is over.
    mutating func pauseEnds() -> [Said] {
        guard !waits.isEmpty else { return [] }
        let wait = waits.removeFirst()
        now = max(now, wait.until)
        return said(machine.retryDue(wait))
    }

    /// Answers all that is asked as an owner does that knows no newer client.
    mutating func settle() {
        while let ask = asks.first {
            if case .register = ask.content {
                _ = answer(.registered(ask.session.order))
            } else {
                _ = answer(.done)
            }
        }
    }

    /// Opens a session with one link.
    mutating func open(_ id: String, _ link: Int, instance: UInt64 = 7, order: SessionOrder = Self.order(5)) {
        let session = Self.session(id, instance: instance)
        guard machine.opening(session, link) == nil else { return }
        _ = said(machine.opened(id, .success(order)).actions)
    }

    /// A ticket is shown: whether the session is confirmed, and what the machine said.
    mutating func resume(_ session: Session, _ link: Int) -> (isConfirmed: Bool?, said: [Said]) {
        let (isConfirmed, actions) = machine.resumed(session, link)
        return (try? isConfirmed.get(), said(actions))
    }

    /// A session listens to a device, and its owner knows.
    mutating func subscribe(_ id: String, _ device: DeviceID) {
        guard case .success(let number) = machine.subscribing(id, device) else { return }
        _ = said(machine.subscribed(id, device, number, nil))
    }

    /// A map in which shards have these epochs and all others none.
    mutating func map(_ epochs: [ShardID: Epoch]) -> [Said] { said(machine.mapChanged { epochs[$0] ?? 0 }) }
}

/// What a machine answered, where it answered something; `#require` itself takes no call that mutates.
func required<Value>(_ value: Value?) throws -> Value { try #require(value) }
