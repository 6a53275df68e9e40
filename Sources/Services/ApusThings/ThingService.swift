package import ApusClientAPI
package import ApusCluster
package import ApusContract
package import ApusCore
package import ApusSessions
package import ApusStorage
import ApusWire
import SwiftProtobuf

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
                retention: TopicRetention(eventsMax: Self.eventsMax, byteCountMax: Self.eventByteCountMax), on: topics
            ) { key, session throws(ApusError) in
                _ = try await presence(of: try DeviceID(checking: key, "the device's id"), for: session)
            })
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
            let presence = try await presence(of: device, for: call.session)
            let read = ThingRead.with {
                ($0.path, $0.online, $0.onlineTime) = (request.path, presence.online.rawValue, presence.time)
                $0.maxAgeMs = request.maxAgeMs
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
            let reply = try await products.thing(device).ask(ThingListPending(), timeout: try call.timeLeft())
            return .with {
                $0.version = reply.version
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
            let write = ThingWrite.with {
                ($0.path, $0.json, $0.ifVersion) = (request.path, request.json, request.ifVersion)
            }
            return try await change(request.device, call) { device throws(ApusError) in
                try await send(checked: write, to: device, call)
            }
        }
        api.on(ClientAddUserPropertyRequest.self, byteCountMax: most, orderKey: { $0.device }) {
            request, call throws(ApusError) in
            let add = ThingAddUser.with { ($0.name, $0.json) = (request.name, request.json) }
            return try await change(request.device, call) { device throws(ApusError) in
                try await send(add, to: device, call)
            }
        }
        api.on(ClientDeleteUserPropertyRequest.self, orderKey: { $0.device }) { request, call throws(ApusError) in
            let delete = ThingDeleteUser.with { $0.name = request.name }
            return try await change(request.device, call) { device throws(ApusError) in
                try await send(delete, to: device, call)
            }
        }
        api.on(ClientReportPropertyRequest.self, byteCountMax: most, orderKey: { _ in "things.report" }) {
            request, call throws(ApusError) in
            let report = ThingReport.with {
                ($0.path, $0.json, $0.receivedVersion) = (request.path, request.json, request.receivedVersion)
            }
            return try await change("", call) { device throws(ApusError) in
                try await send(checked: report, to: device, call)
            }
        }
    }

    /// Changes the model and publishes the change. A client that repeats the request repeats the event, with the same
    /// versions.
    private func change(
        _ text: String, _ call: ClientCall, _ send: (DeviceID) async throws(ApusError) -> ThingChanged
    ) async throws(ApusError) -> ClientWritePropertyResponse {
        let device = try Self.device(text, call.session)
        if call.session.device == nil { _ = try await presence(of: device, for: call.session, control: true) }
        let changed = try await send(device)
        if changed.version > changed.previousVersion {
            let event = ClientPropertyChanged.with {
                ($0.device, $0.path, $0.json) = (device.rawValue, changed.path, changed.json)
                ($0.version, $0.previousVersion, $0.pending) = (
                    changed.version, changed.previousVersion, changed.isPending
                )
            }
            try await publish(event, of: device, call)
            await observer?.changed(event, of: device, at: changed.changedMs > 0 ? changed.changedMs : nil)
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
        _ event: ClientPropertyChanged, of device: DeviceID, _ call: ClientCall
    ) async throws(ApusError) {
        let topic = ClientTopic(kind: Self.topicKind, key: device.rawValue)
        guard topic.description.utf8.count <= ClientTopic.byteCountMax else { return }
        try await topics.publish(
            event, to: topic, version: event.version, after: event.previousVersion, request: call.request,
            timeout: try call.timeLeft())
    }

    // MARK: - Who may

    /// The device that a request concerns: the one that asks, or the named one. Throws 12004, 21031.
    private static func device(_ text: String, _ session: Session) throws(ApusError) -> DeviceID {
        guard let own = session.device else { return try DeviceID(checking: text, "the device's id") }
        guard text.isEmpty || text == own.rawValue else {
            throw ApusError(.notAllowed, "a device has access to its own model only")
        }
        return own
    }

    /// Whether the device is online. Throws 8002, 8003 and 12004 if the session may not know.
    private func presence(
        of device: DeviceID, for session: Session, control: Bool = false
    ) async throws(ApusError) -> Presence {
        guard let own = session.device else {
            return try await sessions.inspect(device, for: session, subscribe: false, control: control).get()
        }
        guard own == device else { throw ApusError(.notAllowed, "a device hears of its own model only") }
        return Presence(online: .online, time: 0)
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
