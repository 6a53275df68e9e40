import ApusContract
import Foundation

/// The AsyncAPI 3.0 document of the WebSocket: the events of each topic, made of the registrations (D17).
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
                                + "topics.subscribe.")
                    ),
                ])
            ),
            ("channels", .object(api.topics.map { ($0.name, channel($0)) })),
            ("operations", .object(api.topics.map { ("hear.\($0.name)", hears($0)) })),
            ("components", .object([("schemas", .object(schemas.components(api.events.map(\.messageName))))])),
        ]).indented
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
