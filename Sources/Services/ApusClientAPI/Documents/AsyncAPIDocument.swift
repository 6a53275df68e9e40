import ApusContract
import ApusCore
import Foundation

/// The AsyncAPI 3.0 document of the WebSocket: the events of each topic, and the requests that REST does not have, made
/// of the registrations (D17).
package struct AsyncAPIDocument {
    private let api: ClientAPI
    private let schemas: ProtoSchemas

    package init(_ api: ClientAPI) {
        self.api = api
        schemas = ProtoSchemas(api.schemas)
    }

    /// Indented, with a fixed order.
    package var text: String {
        JSON.object([
            ("asyncapi", .string("3.0.0")),
            (
                "info",
                .object([
                    ("title", .string("Apus events")), ("version", .string("1")),
                    (
                        "description",
                        .string(
                            "Text messages of /v1/ws. A client sends {\"hello\":{\"role\":\"ROLE_APP\",\"token\":…}} "
                                + "first, then {\"id\":N,\"request\":NAME,\"body\":{…}}, and {\"cancel\":N}. A "
                                + "request may have \"timeoutMs\" and \"traceparent\" (W3C Trace Context). The node "
                                + "answers {\"id\":N,\"response\":{…}} or {\"id\":N,\"error\":{…}}, and sends "
                                + "{\"event\":{…}} for the topics that the client subscribed to with "
                                + "topics.subscribe. The requests of the OpenAPI document are valid here as well; the "
                                + "channel requests has those that REST does not have. Live media, with the requests "
                                + "streams.play, stop, publish and unpublish and binary messages, are described in "
                                + "docs/media-over-websocket.md.")
                    ),
                ])
            ),
            ("channels", .object(api.topics.map { ($0.name, channel($0)) } + [("requests", requestChannel)])),
            (
                "operations",
                .object(
                    api.topics.map { ("hear.\($0.name)", hears($0)) }
                        + requests.map { ("ask.\($0.info.name)", asks($0)) })
            ),
            ("components", .object([("schemas", .object(schemas.components(messageNames, rules)))])),
        ]).indented
    }

    /// The requests without a path.
    private var requests: [ClientOperation] {
        api.operations.filter { $0.info.path == nil }
    }

    private var rules: [String: [String: FieldRule]] {
        Dictionary(requests.map { ($0.inputName, $0.info.fields) }, uniquingKeysWith: { first, _ in first })
    }

    private var messageNames: [String] {
        api.events.map(\.messageName) + requests.flatMap { [$0.inputName, $0.outputName] }
    }

    private var requestChannel: JSON {
        .object([
            ("address", .string("/v1/ws")),
            ("description", .string("Requests that REST does not have, and their answers.")),
            (
                "messages",
                .object(
                    requests.flatMap { operation in
                        [
                            (operation.info.name, request(operation)),
                            ("\(operation.info.name).response", response(operation)),
                        ]
                    })
            ),
        ])
    }

    private func request(_ operation: ClientOperation) -> JSON {
        let info = operation.info
        return .object([
            ("name", .string(info.name)), ("summary", .string(info.summary)),
            (
                "description",
                .string(
                    "For clients of role \(info.roles.names.joined(separator: ", ")). "
                        + "Number \(info.number) of the native protocol.")
            ),
            (
                "payload",
                Self.envelope([
                    ("id", Self.number), ("request", .object([("const", .string(info.name))])),
                    ("body", Self.reference(operation.inputName)), ("timeoutMs", Self.number),
                ])
            ),
        ])
    }

    private func response(_ operation: ClientOperation) -> JSON {
        .object([
            ("name", .string("\(operation.info.name).response")),
            (
                "payload",
                Self.envelope([("id", Self.number), ("response", Self.reference(operation.outputName))])
            ),
        ])
    }

    private func asks(_ operation: ClientOperation) -> JSON {
        let channel = JSON.object([("$ref", .string("#/channels/requests"))])
        func message(_ name: String) -> JSON {
            .array([.object([("$ref", .string("#/channels/requests/messages/\(name)"))])])
        }
        return .object([
            ("action", .string("receive")), ("channel", channel), ("messages", message(operation.info.name)),
            (
                "reply",
                .object([("channel", channel), ("messages", message("\(operation.info.name).response"))])
            ),
        ])
    }

    private static let number = JSON.object([("type", .string("integer"))])

    private static func reference(_ message: String) -> JSON {
        .object([("$ref", .string("#/components/schemas/\(ProtoSchemas.shortName(message))"))])
    }

    private static func envelope(_ properties: [(String, JSON)]) -> JSON {
        .object([
            ("type", .string("object")), ("properties", .object(properties)),
            ("required", .strings(properties.prefix(2).map(\.0))),
        ])
    }

    private func channel(_ kind: any ClientTopicKind) -> JSON {
        .object([
            ("address", .string("\(kind.name)/{key}")), ("description", .string(kind.summary)),
            (
                "parameters",
                .object([("key", .object([("description", .string("What the topic is about."))]))])
            ),
            ("messages", .object(kind.events.map { ($0.info.name, message($0)) })),
        ])
    }

    private func message(_ event: ClientEventKind) -> JSON {
        .object([
            ("name", .string(event.info.name)), ("summary", .string(event.info.summary)),
            (
                "payload",
                .object([("$ref", .string("#/components/schemas/\(ProtoSchemas.shortName(event.messageName))"))])
            ),
        ])
    }

    private func hears(_ kind: any ClientTopicKind) -> JSON {
        .object([
            ("action", .string("send")),
            ("channel", .object([("$ref", .string("#/channels/\(kind.name)"))])),
        ])
    }
}
