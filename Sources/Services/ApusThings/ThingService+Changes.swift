import ApusClientAPI
package import ApusCluster
import ApusContract
package import ApusCore
package import ApusSessions
import SwiftProtobuf

// Changes of models, at the node of the client's connection and at the owner of the device's shard. The owner checks
// the right and writes the change together with its event. The two nodes exchange one message and its answer. Each
// durable change is published, whichever nodes fail: the event is in the outbox of the model.

/// A change of a model that a client requests.
private struct ThingChange {
    let device: DeviceID
    /// The account, which must have the right to control the device; nil: the device itself, which is already checked.
    let account: AccountID?
    var message: ThingRun.OneOf_Change
    let deadline: MonotonicTime
    /// The call, with the client's identity and, if there is one, the request's id.
    var call: EntityCall

    /// - Throws: 10005 after the deadline.
    func timeLeft() throws(ApusError) -> Duration { try deadline.timeLeft() }
}

extension ThingService {
    func addWrites(to api: inout ClientAPI) {
        let most = Self.requestByteCountMax
        api.on(ClientWritePropertyRequest.self, byteCountMax: most, orderKey: { $0.device }) {
            request, call throws(ApusError) in
            let write = ThingWrite.with {
                ($0.path, $0.json, $0.ifVersion) = (request.path, request.json, request.ifVersion)
                $0.writer = ThingWriter(Authority(call.session))
            }
            return try await change(request.device, .write(write), call)
        }
        api.on(ClientAddUserPropertyRequest.self, byteCountMax: most, orderKey: { $0.device }) {
            request, call throws(ApusError) in
            let add = ThingAddUser.with { ($0.name, $0.json) = (request.name, request.json) }
            return try await change(request.device, .addUser(add), call)
        }
        api.on(ClientDeleteUserPropertyRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            try await change(request.device, .deleteUser(.with { $0.name = request.name }), call)
        }
        api.on(ClientReportPropertyRequest.self, byteCountMax: most, orderKey: { _ in "things.report" }) {
            request, call throws(ApusError) in
            let report = ThingReport.with {
                ($0.path, $0.json, $0.receivedVersion) = (request.path, request.json, request.receivedVersion)
            }
            return try await change("", .report(report), call)
        }
    }

    /// Writes a setting or a user property for a service, on the word of a client (docs/authority.md).
    ///
    /// - Parameters:
    ///   - path: as in ``ThingState/write(_:_:ifVersion:by:time:)``.
    ///   - call: with the id of the request, so that a repetition is carried out once.
    /// - Throws: 8002, 8003, 12004 and 20011 if the account may not control the device; otherwise as the request
    ///   `properties.write`.
    package func write(
        _ path: String, _ json: String, of device: DeviceID, by authority: Authority, timeout: Duration,
        call: EntityCall
    ) async throws(ApusError) -> ThingRan {
        let write = ThingWrite.with {
            ($0.path, $0.json, $0.writer) = (path, json, ThingWriter(authority))
        }
        var change = ThingChange(
            device: device, account: authority.account, message: .write(write), deadline: .now() + timeout, call: call)
        let ran = try await sendToOwner(&change)
        return if let ran { ran } else { try await run(change) }
    }

    /// Reads a part of a model for a service, which has checked the client's right to the device.
    ///
    /// - Parameter access: the account's access to the device.
    /// - Throws: 20101 if the path is not valid, 21003 if the model has nothing there, 10005 and 10010 if the owner of
    ///   the model does not answer.
    package func read(
        _ path: String, of device: DeviceID, _ access: DeviceAccess, timeout: Duration
    ) async throws(ApusError) -> ThingReadReply {
        let read = ThingRead.with {
            ($0.path, $0.online, $0.onlineTime) = (path, access.presence.online.rawValue, access.presence.time)
            $0.dataSinceMs = access.dataSince
        }
        return try await products.thing(device).ask(read, timeout: timeout)
    }

    /// Changes the model. The answer does not wait for the event, which is published afterwards.
    private func change(
        _ text: String, _ message: ThingRun.OneOf_Change, _ call: ClientCall
    ) async throws(ApusError) -> ClientWritePropertyResponse {
        let device = try Self.device(text, call.session)
        var change = ThingChange(
            device: device, account: call.session.device == nil ? call.session.account : nil, message: message,
            deadline: call.deadline, call: call.entityCall)
        if change.account == nil {
            change.message.dataSince = try await access(to: device, for: call.session).dataSince
        } else {
            try sessions.use(device, in: call.session)
        }
        let ran = try await sendToOwner(&change)
        let answer = if let ran { ran } else { try await run(change) }
        return .with { ($0.version, $0.pending) = (answer.version, answer.isPending) }
    }

    /// Sends the change to the owner of the device's shard in one message. Returns nil if this node is the owner, or if
    /// the answer is lost. After a lost answer the change has a request id, so that it is carried out only once.
    private func sendToOwner(_ change: inout ThingChange) async throws(ApusError) -> ThingRan? {
        let shard = ThingEntity.definition.address(change.device.rawValue).shard
        guard !view.isLocal(shard) else { return nil }
        var generator = SystemRandomNumberGenerator()
        let (id, left) = (change.call.request ?? RequestID(using: &generator), try change.timeLeft())
        change.call.request = id
        let message = ThingRun.with { [change] in
            ($0.device, $0.account) = (change.device.rawValue, change.account?.rawValue ?? "")
            ($0.identity, $0.requestHigh, $0.requestLow) = (change.call.identity ?? "", id.high, id.low)
            ($0.leftMs, $0.change) = (Int64(left.milliseconds), change.message)
        }
        switch try await entities.askOwner(of: shard, message, timeout: left) {
        case .reply(let ran): return ran
        case .isHere, .isLost: return nil
        }
    }

    /// Carries out a change that another node sent to this node as the owner.
    func run(_ message: ThingRun) async throws(ApusError) -> ThingRan {
        let account = AccountID(rawValue: message.account)
        guard let device = DeviceID(rawValue: message.device), account != nil || message.account.isEmpty,
            let part = message.change
        else { throw ApusError(.malformed) }
        var call = EntityCall()
        call.identity = message.identity
        call.request = RequestID(high: message.requestHigh, low: message.requestLow)
        return try await run(
            ThingChange(
                device: device, account: account, message: part, deadline: .now() + .milliseconds(message.leftMs),
                call: call))
    }

    /// Checks the right, and changes the model.
    private func run(_ change: ThingChange) async throws(ApusError) -> ThingRan {
        var change = change
        if let account = change.account {
            let access = try await sessions.access(to: change.device, for: account, control: true).get()
            change.message.dataSince = access.dataSince
        }
        let changed =
            switch change.message {
            case .write(let write): try await send(checked: write, change)
            case .report(let report): try await send(checked: report, change)
            case .addUser(let add): try await send(add, change)
            case .deleteUser(let delete): try await send(delete, change)
            }
        try await publishUnqueued(changed, of: change.device)
        return .with {
            ($0.version, $0.isPending) = (changed.version, changed.isPending)
            $0.isUnchanged = changed.version == changed.previousVersion
        }
    }

    private func send<M: EntityMessage>(
        _ message: M, _ change: ThingChange
    ) async throws(ApusError) -> ThingChanged where M.Reply == ThingChanged {
        try await products.thing(change.device).ask(message, timeout: try change.timeLeft(), call: change.call)
    }

    /// Sends a change after a check against the schema of the device's product.
    private func send<M: CheckedChange>(checked message: M, _ change: ThingChange) async throws(ApusError)
        -> ThingChanged
    {
        let path = try ThingPath(message.path)
        // The model refuses changes at other paths.
        guard let root = path.root, path.name != nil, M.checkedRoots.contains(root) else {
            return try await send(message, change)
        }
        let part = try ThingPart(path, message.json)
        return try await products.change(part, of: change.device) { product throws(ApusError) in
            var message = message
            message.checkedProduct = product
            return try await send(message, change)
        }
    }
}

/// The node of a client sends a change to the owner of the device's shard.
extension ThingRun: NodeMessage {
    package typealias Reply = ThingRan
    package static var method: UInt16 { 0x0057 }
    package var isWithinBounds: Bool { (0...31_536_000_000).contains(leftMs) }
}

extension ThingRun.OneOf_Change {
    /// The time since which the device's data belongs to its account.
    fileprivate var dataSince: UInt64 {
        get {
            switch self {
            case .write(let write): write.dataSinceMs
            case .report(let report): report.dataSinceMs
            case .addUser(let add): add.dataSinceMs
            case .deleteUser(let delete): delete.dataSinceMs
            }
        }
        set {
            switch self {
            case .write(var write):
                write.dataSinceMs = newValue
                self = .write(write)
            case .report(var report):
                report.dataSinceMs = newValue
                self = .report(report)
            case .addUser(var add):
                add.dataSinceMs = newValue
                self = .addUser(add)
            case .deleteUser(var delete):
                delete.dataSinceMs = newValue
                self = .deleteUser(delete)
            }
        }
    }
}

/// A change that is checked against a schema.
private protocol CheckedChange: EntityMessage where Reply == ThingChanged {
    /// The roots at which the change may concern leaves with a schema.
    static var checkedRoots: [ThingRoot] { get }
    var path: String { get }
    var json: String { get }
    var checkedProduct: String { get set }
}

extension ThingWrite: CheckedChange {
    fileprivate static let checkedRoots: [ThingRoot] = [.writable]
}

extension ThingReport: CheckedChange {
    fileprivate static let checkedRoots: [ThingRoot] = [.readonly, .writable, .action]
}
