package import ApusClientAPI
import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import SwiftProtobuf
import Synchronization

/// What learns of changes of models: a port.
///
/// Isolation: may be called from any task.
package protocol ThingObserver: Sendable {
    /// The change is durable. Its client waits for the return of this.
    ///
    /// - Parameter time: of the change, in Unix milliseconds; nil if the owner is a node of an earlier release.
    func changed(_ change: ClientPropertyChanged, of device: DeviceID, at time: Int64?) async
}

/// What asks devices for values: a port.
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
package struct ThingService: NodeService, RelationObserver {
    package static let name = "Things"
    private static let collection = EntityCollection<ThingState>("things", kind: .thing, layout: 1)
    package static let records = RecordCatalogue([collection])
    /// The kind of the topics.
    package static let topicKind = "things"
    /// The longest request: the largest value, with the quotes that JSON in JSON needs.
    static let requestByteCountMax = 2 * ThingState.byteCountMax + 4096

    /// Events of a device that are kept for clients that were away.
    private static let eventsMax = 32
    /// The bytes of these together. One of the largest value is kept in any case.
    private static let eventByteCountMax = 32 << 10

    let sessions: SessionService
    let entities: EntityRegistry
    let view: ClusterView
    let topics: TopicService
    let products: ProductService
    /// Who may use each device.
    private let devices: SessionRecords
    let ports: ServicePorts
    private let reader: any DeviceReader
    private let bindings = DeviceBindings()

    package init(_ configuration: NoConfiguration, of node: NodeContext) throws(ApusError) {
        (sessions, topics, ports) = (node.sessions, node.topics, node.ports)
        (entities, view) = (node.entities, node.view)
        devices = SessionRecords(node.records)
        products = try ports.one(ProductService.self)
        reader = try ports.one((any DeviceReader).self)
        node.runtime.register(ThingEntity.definition, in: Self.collection)
        node.dispatcher.on(ThingRun.self) { [self] _, message throws(ApusError) in try await run(message) }
        ports.provide(self)
        ports.provide(self, as: (any RelationObserver).self)
    }

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

    // MARK: - Who may

    /// Wipes the data of former accounts, and withdraws what others have written. If this fails, the data is wiped with
    /// the next message to the model, and the rest is withdrawn when the device asks for it.
    package func related(_ device: DeviceID, _ change: DeviceRelationChange, before: DeviceRecord?) async {
        guard change.endsRights(before: before) else { return }
        let since = (try? await devices.record(of: device))?.dataSince ?? 0
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
    static func device(_ text: String, _ session: Session) throws(ApusError) -> DeviceID {
        guard let own = session.device else { return try DeviceID(checking: text, "the device's id") }
        guard text.isEmpty || text == own.rawValue else {
            throw ApusError(.notAllowed, "a device has access to its own model only")
        }
        return own
    }

    /// Whether the device is online, and since when its data is that of its account. Throws 8002, 8003, 12001 and 12004
    /// if the session may not know.
    func access(to device: DeviceID, for session: Session) async throws(ApusError) -> DeviceAccess {
        guard let own = session.device else {
            try sessions.use(device, in: session)
            return try await sessions.access(to: device, for: session.account, control: false).get()
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
