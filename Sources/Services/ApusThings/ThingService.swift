package import ApusClientAPI
package import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import SwiftProtobuf
import Synchronization

/// What learns of changes of models.
///
/// Isolation: may be called from any task.
package protocol ThingObserver: Sendable {
    /// The change is durable. Its client waits for the return of this.
    ///
    /// - Parameter time: of the change, in Unix milliseconds; nil if the owner is a node of an earlier release.
    func changed(_ change: ClientPropertyChanged, of device: DeviceID, at time: Int64?) async
}

/// What asks devices for values.
///
/// Isolation: may be called from any task.
package protocol DeviceReader: Sendable {
    /// Asks a device for the value of a leaf, which the device reports as well. The client may view the device.
    ///
    /// - Parameters:
    ///   - leaf: such as `ProReadonly.battery`.
    ///   - presence: that of the device.
    /// - Returns: the value in JSON, and the time of the answer in Unix milliseconds.
    /// - Throws: 8000 if the device is offline, 20104 if its program cannot be asked, 21002 if it does not answer in
    ///   time, and what the device has answered.
    func value(
        of leaf: String, _ device: DeviceID, _ presence: Presence, _ call: ClientCall
    ) async throws(ApusError) -> (json: String, timeMs: Int64)
}

/// The thing models of devices (IV-D1 to IV-D10): requests of apps and devices, and the topics `things/DEVICE`.
///
/// An app may read and write the model of a device that is bound to its account, also while the device is offline. A
/// device reports its own model, hears its topic, and asks for pending settings when it connects.
///
/// Isolation: `Sendable`; the models are entities.
package struct ThingService: Sendable {
    private static let collection = EntityCollection<ThingState>("things", kind: .thing, layout: 1)
    package static let records = RecordCatalogue([collection, ProductRecords.products, ProductRecords.owners])
    /// The kind of the topics.
    package static let topicKind = "things"
    /// The longest request: the largest value, with the quotes that JSON in JSON needs.
    private static let requestByteCountMax = 2 * ThingState.byteCountMax + 4096

    /// Events of a device that are kept for clients that were away.
    private static let eventsMax = 32
    /// The bytes of these together. One of the largest value is kept in any case.
    private static let eventByteCountMax = 32 << 10

    private let sessions: SessionService
    private let topics: TopicService
    private let products: ProductService
    private let reader: any DeviceReader
    private let observer: (any ThingObserver)?
    private let bindings = DeviceBindings()

    package init(
        sessions: SessionService, topics: TopicService, products: ProductService, reader: any DeviceReader,
        observer: (any ThingObserver)? = nil
    ) {
        (self.sessions, self.topics, self.products, self.observer) = (sessions, topics, products, observer)
        self.reader = reader
    }

    /// Registers the kind of entity. Called once, before the node is a member.
    package static func register(with runtime: EntityRuntime) {
        runtime.register(ThingEntity.definition, in: collection)
    }

    /// Registers the requests and the topics.
    package func add(to api: inout ClientAPI) {
        addReads(to: &api)
        addWrites(to: &api)
        api.add(
            PublishedTopics(
                Self.topicKind, "The changes of a device's thing model; the key is the device's id.",
                events: [ClientEventKind(ClientPropertyChanged.self)],
                retention: TopicRetention(eventsMax: Self.eventsMax, byteCountMax: Self.eventByteCountMax),
                generation: { key, session throws(ApusError) -> UInt64 in
                    try await access(to: try DeviceID(checking: key, "the device's id"), for: session).dataSince
                }, on: topics))
    }

    /// The values of states that are texts, such as that of `ProReadonly._firmware`, also while the device is offline.
    /// For services: the caller checks who may know them.
    ///
    /// - Returns: by the names of the leaves. A state that the model does not have, or that is no text, is left out.
    /// - Throws: 10005 and 10010 if the owner of the model does not answer.
    package func states(
        _ names: [String], of device: DeviceID, timeout: Duration
    ) async throws(ApusError) -> [String: String] {
        var found: [String: String] = [:]
        for name in names {
            let read = ThingRead.with { $0.path = "ProReadonly.\(name).stVal" }
            do throws(ApusError) {
                let json = try await products.thing(device).ask(read, timeout: timeout).json
                found[name] = JSONValue(Array(json.utf8)[...])?.string
            } catch {
                guard error.code == .propertyUnknown else { throw error }
            }
        }
        return found
    }

    private func addReads(to api: inout ClientAPI) {
        api.on(ClientReadPropertyRequest.self) { request, call throws(ApusError) in
            let path = try ThingPath(request.path)
            let device = try Self.device(request.device, call.session)
            let access = try await access(to: device, for: call.session)
            let presence = access.presence
            let read = ThingRead.with {
                ($0.path, $0.online, $0.onlineTime) = (request.path, presence.online.rawValue, presence.time)
                ($0.maxAgeMs, $0.dataSinceMs) = (request.maxAgeMs, access.dataSince)
            }
            if call.session.device != nil, path.root ?? .writable == .writable {
                // A device that starts takes the values of its settings from its model, also those that are pending.
                _ = try await pending(of: device, access.dataSince, timeout: try call.timeLeft())
            }
            let reply = try await products.thing(device).ask(read, timeout: try call.timeLeft())
            var found = ClientProperty.with {
                ($0.path, $0.json, $0.version, $0.pending) = (
                    path.description, reply.json, reply.version, reply.isPending
                )
            }
            // A device knows its own values.
            guard request.maxAgeMs > 0, !reply.isFresh, call.session.device == nil else { return found }
            (found.json, found.confirmedMs) = try await confirmed(path, of: device, presence, call)
            let after = try await products.thing(device).ask(read, timeout: try call.timeLeft())
            (found.version, found.pending) = (after.version, after.isPending)
            return found
        }
        api.on(ClientListPendingPropertiesRequest.self) { _, call throws(ApusError) in
            let device = try Self.device("", call.session)
            let since = try await access(to: device, for: call.session).dataSince
            let reply = try await pending(of: device, since, timeout: try call.timeLeft())
            return .with {
                ($0.version, $0.dataSinceMs) = (reply.version, since)
                $0.properties = reply.settings.map { setting in
                    .with {
                        ($0.path, $0.json, $0.version) = (setting.path, setting.json, setting.version)
                        $0.pending = true
                    }
                }
            }
        }
    }

    /// Asks the device for what is at a path.
    ///
    /// - Throws: 20101 if the path leads into no state or setting, 21003 if the device's value has nothing there,
    ///   otherwise as ``DeviceReader/value(of:_:_:_:)``.
    private func confirmed(
        _ path: ThingPath, of device: DeviceID, _ presence: Presence, _ call: ClientCall
    ) async throws(ApusError) -> (json: String, timeMs: Int64) {
        guard let root = path.root, let name = path.name, root == .readonly || root == .writable else {
            throw ApusError(.pathIllegal, "only a state or a setting can be asked of the device")
        }
        let answer = try await reader.value(of: "\(root.name).\(name)", device, presence, call)
        let leaf = ThingLeaf.with {
            ($0.root, $0.name, $0.value, $0.time) = (root, name, answer.json, answer.timeMs / 1000)
        }
        guard let part = leaf.tree[path.fields[...]] else {
            throw ApusError(.propertyUnknown, "the device's value has nothing at \(path)")
        }
        return (part.text, answer.timeMs)
    }

    private func addWrites(to api: inout ClientAPI) {
        let most = Self.requestByteCountMax
        api.on(ClientWritePropertyRequest.self, byteCountMax: most, orderKey: { $0.device }) {
            request, call throws(ApusError) in
            var write = ThingWrite.with {
                ($0.path, $0.json, $0.ifVersion) = (request.path, request.json, request.ifVersion)
                $0.writer = ThingWriter(call.session)
            }
            return try await change(request.device, call) { device, since throws(ApusError) in
                write.dataSinceMs = since
                return try await send(checked: write, to: device, call)
            }
        }
        api.on(ClientAddUserPropertyRequest.self, byteCountMax: most, orderKey: { $0.device }) {
            request, call throws(ApusError) in
            try await change(request.device, call) { device, since throws(ApusError) in
                let add = ThingAddUser.with {
                    ($0.name, $0.json, $0.dataSinceMs) = (request.name, request.json, since)
                }
                return try await send(add, to: device, call)
            }
        }
        api.on(ClientDeleteUserPropertyRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            try await change(request.device, call) { device, since throws(ApusError) in
                let delete = ThingDeleteUser.with { ($0.name, $0.dataSinceMs) = (request.name, since) }
                return try await send(delete, to: device, call)
            }
        }
        api.on(ClientReportPropertyRequest.self, byteCountMax: most, orderKey: { _ in "things.report" }) {
            request, call throws(ApusError) in
            var report = ThingReport.with {
                ($0.path, $0.json, $0.receivedVersion) = (request.path, request.json, request.receivedVersion)
            }
            return try await change("", call) { device, since throws(ApusError) in
                report.dataSinceMs = since
                return try await send(checked: report, to: device, call)
            }
        }
    }

    /// Changes the model and publishes the change. A client that repeats the request repeats the event, with the same
    /// versions.
    private func change(
        _ text: String, _ call: ClientCall, _ send: (DeviceID, _ since: UInt64) async throws(ApusError) -> ThingChanged
    ) async throws(ApusError) -> ClientWritePropertyResponse {
        let device = try Self.device(text, call.session)
        let changed = try await send(device, try await access(to: device, for: call.session, control: true).dataSince)
        if changed.version > changed.previousVersion {
            try await publish(changed, of: device, request: call.request, timeout: try call.timeLeft())
        }
        return .with { ($0.version, $0.pending) = (changed.version, changed.isPending) }
    }

    private func send<M: EntityMessage>(
        _ message: M, to device: DeviceID, _ call: ClientCall
    ) async throws(ApusError) -> ThingChanged where M.Reply == ThingChanged {
        try await products.thing(device).ask(message, timeout: try call.timeLeft(), call: call.entityCall)
    }

    /// Sends a change that the schema of the device's product allows.
    private func send<M: CheckedChange>(
        checked message: M, to device: DeviceID, _ call: ClientCall
    ) async throws(ApusError) -> ThingChanged {
        let path = try ThingPath(message.path)
        // The model refuses the others.
        guard let root = path.root, path.name != nil, M.checkedRoots.contains(root) else {
            return try await send(message, to: device, call)
        }
        let part = try ThingPart(path, message.json)
        return try await products.change(part, of: device) { product throws(ApusError) in
            var message = message
            message.checkedProduct = product
            return try await send(message, to: device, call)
        }
    }

    /// A device whose id is too long for a topic has none.
    private func publish(
        _ changed: ThingChanged, of device: DeviceID, request: RequestID?, timeout: Duration
    ) async throws(ApusError) {
        let event = ClientPropertyChanged.with {
            ($0.device, $0.path, $0.json) = (device.rawValue, changed.path, changed.json)
            ($0.version, $0.previousVersion, $0.pending) = (
                changed.version, changed.previousVersion, changed.isPending
            )
        }
        let topic = ClientTopic(kind: Self.topicKind, key: device.rawValue)
        if topic.description.utf8.count <= ClientTopic.byteCountMax {
            try await topics.publish(
                event, to: topic, version: event.version, after: event.previousVersion,
                generation: changed.dataSinceMs, request: request, timeout: timeout)
        }
        await observer?.changed(event, of: device, at: changed.changedMs > 0 ? changed.changedMs : nil)
    }

    // MARK: - Who may

    /// The accounts that may use the device have changed. If this fails, the data of a former account is wiped with the
    /// next message to the model, and what others have written is withdrawn when the device asks for it.
    package func rightsChanged(of device: DeviceID, dataSince since: UInt64) async {
        if since > 0 {
            let wipe = ThingWithdraw.with { $0.dataSinceMs = since }
            _ = try? await products.thing(device).ask(wipe, timeout: Self.rightsTimeout)
        }
        _ = try? await pending(of: device, since, timeout: Self.rightsTimeout)
    }

    private static let rightsTimeout = Duration.seconds(1)

    /// The pending settings whose writers may still control the device. The others are withdrawn first
    /// (docs/authority.md).
    ///
    /// - Throws: 10021 if the records cannot be read: the device receives nothing then, and asks again.
    private func pending(
        of device: DeviceID, _ since: UInt64, timeout: Duration
    ) async throws(ApusError) -> ThingListPendingReply {
        let deadline = MonotonicTime.now() + timeout
        let model = products.thing(device)
        let reply = try await model.ask(ThingListPending.with { $0.dataSinceMs = since }, timeout: timeout)
        let writers = reply.writers.map { writers in Set(writers.writers.map { Authority($0) }) }
        let valid = try await sessions.controlling(device, writers.reduce(into: []) { $0.formUnion($1) })
        let refused = zip(reply.settings, writers).filter { !$1.isEmpty && $1.isDisjoint(with: valid) }.map(\.0)
        guard !refused.isEmpty else { return reply }
        let withdraw = ThingWithdraw.with {
            $0.settings = refused.map { setting in
                .with { ($0.path, $0.version) = (setting.path, setting.version) }
            }
            $0.dataSinceMs = since
        }
        let changes = try await model.ask(withdraw, timeout: try deadline.timeLeft()).changes
        for change in changes {
            // Who misses the event sees a gap of versions, and reads the model.
            try? await publish(change, of: device, request: nil, timeout: try deadline.timeLeft())
        }
        // What was written meanwhile has an event, and the device asks again.
        var left = reply
        left.settings.removeAll { setting in refused.contains { $0.path == setting.path } }
        left.version = changes.last?.version ?? reply.version
        return left
    }

    /// The device that a request concerns: the one that asks, or the named one. Throws 12004, 21031.
    private static func device(_ text: String, _ session: Session) throws(ApusError) -> DeviceID {
        guard let own = session.device else { return try DeviceID(checking: text, "the device's id") }
        guard text.isEmpty || text == own.rawValue else {
            throw ApusError(.notAllowed, "a device has access to its own model only")
        }
        return own
    }

    /// Whether the device is online, and since when its data is that of its account. Throws 8002, 8003, 12001 and 12004
    /// if the session may not know.
    private func access(
        to device: DeviceID, for session: Session, control: Bool = false
    ) async throws(ApusError) -> DeviceAccess {
        guard let own = session.device else {
            try sessions.use(device, in: session)
            return try await sessions.access(to: device, for: session.account, control: control).get()
        }
        guard own == device else { throw ApusError(.notAllowed, "a device hears of its own model only") }
        let since = try await bindings.dataSince(of: session, sessions)
        return DeviceAccess(presence: Presence(online: .online, time: 0), dataSince: since)
    }
}

/// Since when the data of devices is that of their accounts, for sessions of devices. It does not change while a token
/// is valid, so the records are read once for each.
///
/// Concurrency model: any thread. A `Mutex` guards the cache, and is never held during a read.
private final class DeviceBindings: Sendable {
    private static let countMax = 16_384

    private struct Key: Hashable {
        let device: DeviceID?
        let token: TokenMark
    }
    private let known = Mutex(RecentCache<Key, UInt64>(countMax: countMax))

    /// - Throws: as ``SessionService/checkDevice(_:)``.
    func dataSince(of session: Session, _ sessions: SessionService) async throws(ApusError) -> UInt64 {
        let key = Key(device: session.device, token: session.token)
        if let found = known.withLock({ $0[key] }) { return found }
        // A device that signs in for the first time may report before its record is written.
        guard let record = try await sessions.checkDevice(session) else { return 0 }
        known.withLock { $0[key] = record.dataSince }
        return record.dataSince
    }
}

/// A change whose value a schema may exclude.
private protocol CheckedChange: EntityMessage where Reply == ThingChanged {
    /// Where it may change something that has a schema.
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
