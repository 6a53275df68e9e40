package import ApusClientAPI
import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import SwiftProtobuf
import Synchronization

/// Observes changes of models: a port.
///
/// Isolation: may be called from any task.
package protocol ThingObserver: Sendable {
    /// Called after a change is durable, for the changes of a device in the order of their versions. A change may come
    /// a second time after the death of a node, and comes again after an error; the later changes wait for it.
    ///
    /// - Parameters:
    ///   - time: the time of the change, in Unix milliseconds.
    ///   - dataSince: the time since which the data of the model belongs to the account that it was changed for.
    func changed(
        _ change: ClientPropertyChanged, of device: DeviceID, at time: Int64, dataSince: UInt64
    ) async throws(ApusError)
}

/// Requests values from devices: a port.
///
/// Isolation: may be called from any task.
package protocol DeviceReader: Sendable {
    /// Requests the value of a leaf from a device, which also reports it. The caller has checked that the client may
    /// view the device.
    ///
    /// - Parameters:
    ///   - leaf: the path of the leaf, such as `ProReadonly.battery`.
    ///   - presence: the presence of the device.
    /// - Returns: the value in JSON, and the time of the answer in Unix milliseconds.
    /// - Throws: 8000 if the device is offline, 20104 if its program does not support this, 21002 if it does not answer
    ///   in time, and the error that the device answers.
    func value(
        of leaf: String, _ device: DeviceID, _ presence: Presence, _ call: ClientCall
    ) async throws(ApusError) -> (json: String, timeMs: Int64)
}

/// The thing models of devices (IV-D1 to IV-D10): requests of apps and devices, and the topics `things/DEVICE`.
///
/// An app may read and write the model of a device that is bound to its account, even while the device is offline. A
/// device reports its values, subscribes to its topic, and requests the pending settings when it connects.
///
/// Isolation: `Sendable`; the models are entities.
package struct ThingService: NodeService, RelationObserver {
    package static let name = "Things"
    private static let collection = EntityCollection<ThingState>("things", kind: .thing, layout: 1)
    package static let records = RecordCatalogue([collection])
    /// The kind of the topics.
    package static let topicKind = "things"
    /// The longest request, in bytes: twice the limit of a model, for the escapes that JSON in JSON needs.
    static let requestByteCountMax = 2 * ThingState.byteCountMax + 4096

    /// The events of a device that are kept for clients that were disconnected.
    private static let eventsMax = 32
    /// The bytes of these events together. One event with the largest value is kept in any case.
    private static let eventByteCountMax = 32 << 10

    let sessions: SessionService
    let entities: EntityRegistry
    let view: ClusterView
    let topics: TopicService
    let products: ProductService
    /// The records of the rights to devices.
    private let devices: SessionRecords
    let ports: ServicePorts
    let limited: LogLimiter
    private let reader: any DeviceReader
    private let bindings = DeviceBindings()

    package init(_ configuration: NoConfiguration, of node: NodeContext) throws(ApusError) {
        (sessions, topics, ports) = (node.sessions, node.topics, node.ports)
        (entities, view, limited) = (node.entities, node.view, node.limited)
        devices = SessionRecords(node.records)
        products = try ports.one(ProductService.self)
        reader = try ports.one((any DeviceReader).self)
        node.runtime.register(ThingEntity.definition, in: Self.collection, outbox: self)
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

    /// The values of states that are strings, such as that of `ProReadonly._firmware`, even while the device is
    /// offline. For services, which check the client's rights.
    ///
    /// - Returns: the values by the names of the leaves, without states that do not exist or are not strings.
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
                // A device that starts reads its settings from the model, including pending ones. Settings without a
                // valid writer are withdrawn first.
                _ = try await pending(of: device, access.dataSince, timeout: try call.timeLeft())
            }
            let reply = try await products.thing(device).ask(read, timeout: try call.timeLeft())
            var found = ClientProperty.with {
                ($0.path, $0.json, $0.version, $0.pending) = (
                    path.description, reply.json, reply.version, reply.isPending
                )
            }
            // A device that reads its own model has the current values.
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

    /// Requests the current value at a path from the device.
    ///
    /// - Throws: 20101 if the path is not in a state or setting, 21003 if the device's value has nothing there,
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

    // MARK: - Rights

    /// Removes the data of previous accounts, and withdraws settings whose writers lost their rights. If this fails,
    /// the data is removed with the next message to the model, and the settings are withdrawn when the device requests
    /// them.
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
    /// The most settings that are withdrawn in one message, each with an event.
    private static let withdrawCountMax = 32

    /// Withdraws some settings. While the events of earlier changes wait for their delivery, it waits as well.
    private func withdraw(
        _ settings: ArraySlice<ThingChanged>, of model: EntityRef<EntityCell<ThingState>>, _ since: UInt64,
        until deadline: MonotonicTime
    ) async throws(ApusError) -> [ThingChanged] {
        let message = ThingWithdraw.with {
            $0.settings = settings.map { setting in .with { ($0.path, $0.version) = (setting.path, setting.version) } }
            $0.dataSinceMs = since
        }
        while true {
            do throws(ApusError) {
                return try await model.ask(message, timeout: try deadline.timeLeft()).changes
            } catch {
                guard error.code == .overloaded, (try? await Task.sleep(for: .milliseconds(50))) != nil else {
                    throw error
                }
            }
        }
    }

    /// The pending settings whose writers may still control the device. Other pending settings are withdrawn first
    /// (docs/authority.md).
    ///
    /// - Throws: 10021 if the records cannot be read. The device then receives no settings, and repeats its request.
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
        var changes: [ThingChanged] = []
        for first in stride(from: 0, to: refused.count, by: Self.withdrawCountMax) {
            let settings = refused[first...].prefix(Self.withdrawCountMax)
            changes += try await withdraw(settings, of: model, since, until: deadline)
        }
        // A client that misses the event of an earlier release detects a gap in the versions, and reads the model.
        for change in changes { try? await publishUnqueued(change, of: device) }
        // A setting that was written after the reply has its own event, after which the device requests the settings
        // again.
        var left = reply
        left.settings.removeAll { setting in refused.contains { $0.path == setting.path } }
        left.version = changes.last?.version ?? reply.version
        return left
    }

    /// The device that a request concerns: the device of the session, or the named one if the client is not a device.
    /// Throws 12004 and 21031.
    static func device(_ text: String, _ session: Session) throws(ApusError) -> DeviceID {
        guard let own = session.device else { return try DeviceID(checking: text, "the device's id") }
        guard text.isEmpty || text == own.rawValue else {
            throw ApusError(.notAllowed, "a device has access to its own model only")
        }
        return own
    }

    /// The device's presence, and the time since which its data belongs to its account. Throws 8002, 8003, 12001 and
    /// 12004 if the session has no access to the device.
    ///
    /// - Parameter control: the session of an app needs the right to control the device, and not only to view it.
    package func access(
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

/// The time since which the data of a device belongs to its account, for sessions of devices. It does not change while
/// a token is valid, so the records are read once for each token.
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
        // A device that signs in for the first time may send a request before its record is written.
        guard let record = try await sessions.checkDevice(session) else { return 0 }
        known.withLock { $0[key] = record.dataSince }
        return record.dataSince
    }
}
