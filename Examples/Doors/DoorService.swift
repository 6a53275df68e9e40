import ApusClientAPI
import ApusCluster
import ApusContract
import ApusCore
import ApusEvents
import ApusStorage
import ApusWire
import SwiftProtobuf

/// Step 3: the service, which the nodes of this binary have.
struct DoorService: NodeService {
    static let name = "Doors"
    private static let replicated = EntityDefinition.door(.door, name: "door", durability: .replicated)
    private static let recorded = EntityDefinition.door(.recordedDoor, name: "recorded door", durability: .recorded)
    private static let collection = EntityCollection<DoorState>("example-doors", kind: .recordedDoor, layout: 1)

    static let records = RecordCatalogue([collection])

    private let entities: EntityRegistry
    private let topics: TopicService

    init(_ configuration: NoConfiguration, of node: NodeContext) {
        (entities, topics) = (node.entities, node.topics)
        node.runtime.register(Self.replicated)
        node.runtime.register(Self.recorded, in: Self.collection)
        node.ports.provide(Self.rawData(node.entities))
    }
}

// Step 4: what clients may ask, over the native protocol, WebSocket and REST alike. Any node answers for any door.

extension DoorPassRequest: ClientRequestMessage, BoundedMessage {
    typealias Reply = DoorPassed
    static var info: ClientRequestInfo {
        ClientRequestInfo(
            1000, "doors.pass", .post("/v1/doors/{door}/pass"), roles: [.app, .admin], isIdempotent: false,
            fields: ["door": .door], "Pass a door.")
    }
}

extension DoorCloseRequest: ClientRequestMessage, BoundedMessage {
    typealias Reply = DoorCloseNoted
    static var info: ClientRequestInfo {
        ClientRequestInfo(
            1001, "doors.close", .post("/v1/doors/{door}/close"), roles: [.app, .admin], isIdempotent: false,
            fields: ["door": .door, "after_ms": FieldRule(pattern: "^(0|[1-9][0-9]{0,18})$")],
            "Have a door close by itself.")
    }
}

extension DoorGetRequest: ClientRequestMessage, BoundedMessage {
    typealias Reply = DoorState
    static var info: ClientRequestInfo {
        ClientRequestInfo(
            1002, "doors.get", .get("/v1/doors/{door}"), roles: [.app, .admin], fields: ["door": .door],
            "Get what a door knows.")
    }
}

extension FieldRule {
    /// With its kind a door's name is a topic, which has 63 bytes at most.
    fileprivate static let door = Self(pattern: "^[A-Za-z0-9._-]{1,57}$", isRequired: true)
}

/// Step 5: what clients hear.
extension DoorPassEvent: ClientEventMessage {
    static var info: ClientEventInfo { ClientEventInfo(1000, "doors.passed", "Somebody passed the door.") }
}

extension DoorService {
    func add(to api: inout ClientAPI) {
        api.addSchemas(doorSchemas)
        // The newest sixteen events are kept, so that nobody who resumes within them misses one.
        api.add(
            PublishedTopics(
                "doors", "Who passes a door; the key is the door's name.",
                events: [ClientEventKind(DoorPassEvent.self)],
                retention: TopicRetention(eventsMax: 16), on: topics
            ) { _, _ throws(ApusError) in })
        api.on(DoorPassRequest.self) { request, call throws(ApusError) in
            let door = try entities.door(request.door, request.recorded)
            let passed = try await door.ask(DoorPass(), timeout: try call.timeLeft(), call: call.entityCall)
            guard !request.quiet else { return passed }
            // A client that sends the request again has the event sent again as well: it says what is true, and names
            // the same passage.
            let event = DoorPassEvent.with { ($0.door, $0.passes) = (request.door, passed.passes) }
            try await topics.publish(
                event, to: ClientTopic(kind: "doors", key: request.door), request: call.request,
                timeout: try call.timeLeft())
            return passed
        }
        api.on(DoorCloseRequest.self) { request, call throws(ApusError) in
            let door = try entities.door(request.door, request.recorded)
            let close = DoorCloseLater.with { $0.afterMs = request.afterMs }
            return try await door.ask(close, timeout: try call.timeLeft(), call: call.entityCall)
        }
        api.on(DoorGetRequest.self) { request, call throws(ApusError) in
            try await entities.door(request.door, request.recorded).ask(DoorLook(), timeout: try call.timeLeft())
        }
    }
}

extension DoorService {
    /// Raw data of apps and devices, such as `apus send-server doors/front`: the answer is how often somebody has
    /// passed the door.
    fileprivate static func rawData(_ entities: EntityRegistry) -> ServerHandler {
        ServerHandler("doors") { message throws(ApusError) in
            let door = try entities.door(message.path, false)
            return Array("\(try await door.ask(DoorLook()).passes)".utf8)
        }
    }
}

extension EntityRegistry {
    /// Throws 21031 where this is no door's name.
    fileprivate func door(_ name: String, _ recorded: Bool) throws(ApusError) -> EntityRef<EntityCell<DoorState>> {
        guard name.utf8.count <= 57, DeviceID(rawValue: name) != nil else {
            throw ApusError(.badParameter, "a door's name has 1 to 57 letters, digits, '-', '_' or '.'")
        }
        return ref(EntityCell<DoorState>.self, EntityAddress(kind: recorded ? .recordedDoor : .door, key: name))
    }
}
