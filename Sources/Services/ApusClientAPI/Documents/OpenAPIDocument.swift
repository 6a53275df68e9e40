import ApusContract
import ApusCore
import Foundation

/// The OpenAPI 3.1 document of the requests that REST has, made of their registrations (D17).
package struct OpenAPIDocument {
    private let api: ClientAPI
    private let schemas: ProtoSchemas

    package init(_ api: ClientAPI) {
        self.api = api
        schemas = ProtoSchemas(api.schemas)
    }

    /// Indented, with a fixed order, so that two of the same registrations are the same text.
    package var text: String {
        let operations = api.operations.filter { $0.info.path != nil }
        let names = operations.flatMap { [$0.inputName, $0.outputName] }
        let errors = [("Problem", Self.problem)]
        let components = schemas.components(names, messageRules(operations))
        return JSON.object([
            ("openapi", .string("3.1.0")),
            (
                "info",
                .object([
                    ("title", .string("Apus")), ("version", .string("1")),
                    (
                        "description",
                        .string(
                            "Requests of apps and operators to any node of a cluster. Bodies follow protobuf's JSON "
                                + "mapping: fields with their default value are left out, 64-bit numbers are strings. "
                                + "A request's fields are never null.")
                    ),
                ])
            ),
            ("paths", .object(paths(operations))),
            (
                "components",
                .object([
                    ("schemas", .object(components + errors)),
                    (
                        "securitySchemes",
                        .object([
                            (
                                "token",
                                .object([
                                    ("type", .string("http")), ("scheme", .string("bearer")),
                                    ("bearerFormat", .string("JWT")),
                                ])
                            )
                        ])
                    ),
                ])
            ),
            ("security", .array([.object([("token", .array([]))])])),
        ]).indented
    }

    /// The rules of messages inside of requests, by the messages' full names.
    private func messageRules(_ operations: [ClientOperation]) -> [String: [String: FieldRule]] {
        var rules: [String: [String: FieldRule]] = [:]
        for operation in operations {
            for field in schemas.orderedFields(of: operation.inputName) {
                guard let name = field.messageName, let rule = operation.info.fields[field.name] else { continue }
                rules[name, default: [:]].merge(rule.fields) { first, _ in first }
            }
        }
        return rules
    }

    private func paths(_ operations: [ClientOperation]) -> [(String, JSON)] {
        var paths: [(String, [(String, JSON)])] = []
        for operation in operations {
            let rules = [operation.info.path, operation.info.alias].compactMap { $0 }
            for (index, rule) in rules.enumerated() {
                let name = operation.info.name + (index == 0 ? "" : ".\(rule.method.rawValue.lowercased())")
                let item = (rule.method.rawValue.lowercased(), self.operation(operation, rule, named: name))
                if let known = paths.firstIndex(where: { $0.0 == rule.path }) {
                    paths[known].1.append(item)
                } else {
                    paths.append((rule.path, [item]))
                }
            }
        }
        return paths.map { ($0.0, .object($0.1)) }
    }

    private func operation(_ operation: ClientOperation, _ rule: HTTPRule, named name: String) -> JSON {
        let fields = schemas.orderedFields(of: operation.inputName)
        var parameters: [JSON] = []
        for field in fields where rule.fields.contains(field.name) {
            parameters.append(parameter(field, operation.info, in: "path", name: field.name))
        }
        var entries: [(String, JSON)] = [
            ("operationId", .string(name)), ("summary", .string(operation.info.summary)),
            ("description", .string(Self.whoMay(operation.info))),
            ("tags", .strings([String(operation.info.name.prefix { $0 != "." })])),
        ]
        let rest = fields.filter { !rule.fields.contains($0.name) }
        if rule.method.takesBody {
            entries.append(("parameters", .array(parameters + [Self.idempotencyKey])))
            if !rest.isEmpty { entries.append(("requestBody", body(operation.info, rest))) }
        } else {
            parameters += rest.map { parameter($0, operation.info, in: "query", name: $0.jsonName) }
            entries.append(("parameters", .array(parameters)))
        }
        entries.append(("responses", responses(operation)))
        return .object(entries)
    }

    private static func whoMay(_ info: ClientRequestInfo) -> String {
        "For clients of role \(info.roles.names.joined(separator: ", "))."
            + (info.isForNamedDevices ? " Also with a token for certain devices, about these." : "")
    }

    private static let idempotencyKey = JSON.object([
        ("name", .string("Idempotency-Key")), ("in", .string("header")), ("required", .bool(false)),
        (
            "description",
            .string("Names the request, so that it may be sent again where the service remembers requests.")
        ),
        ("schema", .object([("type", .string("string")), ("pattern", .string("^[!-~]{1,255}$"))])),
    ])

    private func parameter(
        _ field: ProtoField, _ info: ClientRequestInfo, in place: String, name: String
    ) -> JSON {
        var fields: [(String, JSON)] = [
            ("name", .string(name)), ("in", .string(place)), ("required", .bool(place == "path")),
            ("schema", field.schema(under: info.fields[field.name])),
        ]
        if !field.comment.isEmpty { fields.append(("description", .string(field.comment))) }
        return .object(fields)
    }

    private func body(_ info: ClientRequestInfo, _ rest: [ProtoField]) -> JSON {
        let names = Dictionary(rest.map { ($0.name, $0.jsonName) }, uniquingKeysWith: { first, _ in first })
        var schema: [(String, JSON)] = [
            ("type", .string("object")),
            (
                "properties",
                .object(
                    rest.map { field in
                        (
                            field.jsonName,
                            ProtoSchemas.described(field.schema(under: info.fields[field.name]), field.comment)
                        )
                    })
            ),
            ("additionalProperties", .bool(false)),
        ]
        let required = rest.filter { info.fields[$0.name]?.isRequired ?? false }.map(\.jsonName)
        if !required.isEmpty { schema.append(("required", .strings(required))) }
        schema += Self.choice(info.oneOf[...], names)
        return .object([
            ("required", .bool(!required.isEmpty || !info.oneOf.isEmpty)),
            ("content", .object([("application/json", .object([("schema", .object(schema))]))])),
        ])
    }

    /// The shapes as `if`, `then` and `else`: generators of clients make one type of them, where `oneOf` would give
    /// one each.
    private static func choice(_ shapes: ArraySlice<RequestShape>, _ names: [String: String]) -> [(String, JSON)] {
        guard let shape = shapes.first else { return [] }
        let fields = shape.fields.sorted { $0.key < $1.key }
        let properties =
            fields.map { (names[$0.key] ?? $0.key, JSON.object($0.value.keywords)) }
            + shape.flags.map { (names[$0] ?? $0, .object([("const", .bool(true))])) }
        let absent = shape.absent.map { JSON.object([("required", .strings([names[$0] ?? $0]))]) }
        let required = { (properties: [(String, JSON)]) -> [(String, JSON)] in
            [("required", .strings(properties.map(\.0))), ("properties", .object(properties))]
        }
        let all = required(properties) + (absent.isEmpty ? [] : [("not", .object([("anyOf", .array(absent))]))])
        guard shapes.count > 1 else { return all }
        // Texts decide which shape it is, or else what is there.
        let texts = fields.filter { $0.value.pattern != nil }.map { names[$0.key] ?? $0.key }
        let deciding = texts.isEmpty ? properties : properties.filter { texts.contains($0.0) }
        return [
            ("if", .object(required(deciding))), ("then", .object(all)),
            ("else", .object(choice(shapes.dropFirst(), names))),
        ]
    }

    private func responses(_ operation: ClientOperation) -> JSON {
        let reference = JSON.object([
            ("$ref", .string("#/components/schemas/\(ProtoSchemas.shortName(operation.outputName))"))
        ])
        let success = JSON.object([
            ("description", .string("The answer.")),
            ("content", .object([("application/json", .object([("schema", reference)]))])),
        ])
        let problems = [
            ("400", "The request is not valid (10001, 21031)."), ("401", "The token is not valid (12001, 12002)."),
            ("403", "The client may not do this (12004, 8003, 20011)."), ("404", "There is none (8002)."),
            ("409", "It conflicts with what is there (8022, 8023, 8024, 10030)."),
            ("413", "The body is too long (10002)."), ("429", "The account asks too often (10007)."),
            ("500", "An internal failure (10018)."),
            ("503", "Not available now; ask again (21025, 10008, 10017)."), ("504", "Not done in time (10005)."),
        ]
        return .object(
            [("200", success)]
                + problems.map { status, text in
                    (
                        status,
                        .object([
                            ("description", .string(text)),
                            (
                                "content",
                                .object([
                                    (
                                        "application/problem+json",
                                        .object([
                                            (
                                                "schema",
                                                .object([("$ref", .string("#/components/schemas/Problem"))])
                                            )
                                        ])
                                    )
                                ])
                            ),
                        ])
                    )
                })
    }

    private static let problem = JSON.object([
        ("type", .string("object")),
        ("description", .string("RFC 9457. docs/errors.md lists the codes.")),
        (
            "properties",
            .object([
                ("type", .object([("type", .string("string"))])), ("title", .object([("type", .string("string"))])),
                ("status", .object([("type", .string("integer"))])),
                ("detail", .object([("type", .string("string"))])), ("code", .object([("type", .string("integer"))])),
            ])
        ),
        ("required", .strings(["type", "title", "status", "code"])),
    ])
}
