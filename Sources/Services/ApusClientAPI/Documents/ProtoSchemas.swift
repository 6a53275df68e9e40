import ApusContract
import ApusCore
import Foundation
import SwiftProtobuf

/// A field of a message, as REST and the documents need it.
package struct ProtoField: Sendable {
    /// In the proto file.
    package let name: String
    package let jsonName: String
    package let isRepeated: Bool
    package let isBool: Bool
    /// Without the leading spaces; empty without a comment.
    package let comment: String
    /// A schema of JSON Schema 2020-12, without the description.
    let schema: JSON
    /// The full name of its message, where it is one.
    package let messageName: String?

    /// True if the JSON text of a value has the type that the documents tell. Protobuf's own mapping takes more, such
    /// as null for a field that is left out, and numbers where the documents have texts.
    package func accepts(_ value: String) -> Bool {
        guard case .object(let parts) = schema, let first = value.utf8.first else { return false }
        guard case .string(let type)? = parts.first(where: { $0.0 == "type" })?.1 else { return value.hasPrefix("{") }
        switch type {
        case "array": return first == UInt8(ascii: "[")
        case "boolean": return value.hasPrefix("true") || value.hasPrefix("false")
        case "integer", "number":
            return first == UInt8(ascii: "-") || (UInt8(ascii: "0")...UInt8(ascii: "9")).contains(first)
        default: return first == UInt8(ascii: "\"")
        }
    }
}

/// The messages of all services, read from their descriptors: what OpenAPI and AsyncAPI are made of.
package struct ProtoSchemas: Sendable {
    private struct Message: Sendable {
        let comment: String
        let fields: [ProtoField]
    }

    private var messages: [String: Message] = [:]
    /// The first value of each enum of a proto file is what a missing field means.
    private var enums: [String: [String]] = [:]

    /// - Parameter sets: `FileDescriptorSet`s in base64; one that cannot be read adds nothing.
    package init(_ sets: [String]) {
        var files: [Google_Protobuf_FileDescriptorProto] = []
        for set in sets {
            guard let data = Data(base64Encoded: set),
                let read = try? Google_Protobuf_FileDescriptorSet(serializedBytes: data)
            else { continue }
            files += read.file
        }
        for file in files {
            for (index, one) in file.enumType.enumerated() { add(one, ".\(file.package)", file, [5, Int32(index)]) }
            for (index, one) in file.messageType.enumerated() {
                addEnums(one, ".\(file.package)", file, [4, Int32(index)])
            }
        }
        for file in files {
            let comments = Self.comments(file)
            for (index, one) in file.messageType.enumerated() { add(one, file.package, comments, [4, Int32(index)]) }
        }
    }

    /// The fields of a message, by their names in the proto file and by their JSON names.
    package func fields(of message: String) -> [String: ProtoField] {
        var fields: [String: ProtoField] = [:]
        for field in messages[message]?.fields ?? [] {
            fields[field.name] = field
            fields[field.jsonName] = field
        }
        return fields
    }

    func orderedFields(of message: String) -> [ProtoField] { messages[message]?.fields ?? [] }

    /// The messages, and those that they hold, by their names in the documents.
    ///
    /// - Parameter rules: Of the messages' fields, by the messages' full names.
    func components(_ names: [String], _ rules: [String: [String: FieldRule]] = [:]) -> [(String, JSON)] {
        var seen: Set<String> = []
        var waiting = names
        while let name = waiting.popLast() {
            guard seen.insert(name).inserted else { continue }
            waiting += (messages[name]?.fields ?? []).compactMap(\.messageName)
        }
        return seen.sorted().map { (Self.shortName($0), schema(of: $0, rules[$0] ?? [:])) }
    }

    /// In the documents: the last part of the full name.
    static func shortName(_ name: String) -> String { name.split(separator: ".").last.map(String.init) ?? name }

    private func schema(of name: String, _ rules: [String: FieldRule]) -> JSON {
        guard let message = messages[name] else { return .object([("type", .string("object"))]) }
        var fields: [(String, JSON)] = [("type", .string("object"))]
        if !message.comment.isEmpty { fields.append(("description", .string(message.comment))) }
        let properties = message.fields.map { field in
            (field.jsonName, Self.described(field.schema(under: rules[field.name]), field.comment))
        }
        fields += [("properties", .object(properties)), ("additionalProperties", .bool(false))]
        let required = message.fields.filter { rules[$0.name]?.isRequired ?? false }
        if !required.isEmpty { fields.append(("required", .strings(required.map(\.jsonName)))) }
        return .object(fields)
    }

    static func described(_ schema: JSON, _ comment: String) -> JSON {
        guard !comment.isEmpty, case .object(let fields) = schema else { return schema }
        return .object(fields + [("description", .string(comment))])
    }

    // MARK: - Descriptors

    private static func comments(_ file: Google_Protobuf_FileDescriptorProto) -> [[Int32]: String] {
        var comments: [[Int32]: String] = [:]
        for location in file.sourceCodeInfo.location {
            let text = location.leadingComments.isEmpty ? location.trailingComments : location.leadingComments
            let lines = text.split(separator: "\n").map { $0.trimmingCharacters(in: .whitespaces) }
            guard !text.isEmpty, !(lines.first?.hasPrefix("----") ?? false) else { continue }
            comments[location.path] = lines.joined(separator: " ")
        }
        return comments
    }

    private mutating func addEnums(
        _ message: Google_Protobuf_DescriptorProto, _ scope: String, _ file: Google_Protobuf_FileDescriptorProto,
        _ path: [Int32]
    ) {
        for one in message.enumType { add(one, "\(scope).\(message.name)", file, path) }
        for one in message.nestedType { addEnums(one, "\(scope).\(message.name)", file, path) }
    }

    private mutating func add(
        _ one: Google_Protobuf_EnumDescriptorProto, _ scope: String, _ file: Google_Protobuf_FileDescriptorProto,
        _ path: [Int32]
    ) {
        enums["\(scope).\(one.name)"] = one.value.map(\.name)
    }

    private mutating func add(
        _ message: Google_Protobuf_DescriptorProto, _ scope: String, _ comments: [[Int32]: String], _ path: [Int32]
    ) {
        let name = "\(scope).\(message.name)"
        var fields: [ProtoField] = []
        for (index, field) in message.field.enumerated() {
            fields.append(self.field(field, comments[path + [2, Int32(index)]] ?? ""))
        }
        messages[name] = Message(comment: comments[path] ?? "", fields: fields)
        for (index, nested) in message.nestedType.enumerated() {
            add(nested, name, comments, path + [3, Int32(index)])
        }
    }

    private func field(_ field: Google_Protobuf_FieldDescriptorProto, _ comment: String) -> ProtoField {
        let isRepeated = field.label == .repeated
        let item = schema(field)
        let isMessage = field.type == .message
        return ProtoField(
            name: field.name, jsonName: field.jsonName, isRepeated: isRepeated, isBool: field.type == .bool,
            comment: comment,
            schema: isRepeated ? .object([("type", .string("array")), ("items", item)]) : item,
            messageName: isMessage ? String(field.typeName.dropFirst()) : nil)
    }

    /// As protobuf's JSON mapping writes it. 64-bit numbers are strings.
    private func schema(_ field: Google_Protobuf_FieldDescriptorProto) -> JSON {
        switch field.type {
        case .message:
            return .object([("$ref", .string("#/components/schemas/\(Self.shortName(field.typeName))"))])
        case .enum:
            return .object([("type", .string("string")), ("enum", .strings(enums[field.typeName] ?? []))])
        case .bool: return .object([("type", .string("boolean"))])
        case .string: return .object([("type", .string("string"))])
        case .bytes:
            return .object([
                ("type", .string("string")), ("contentEncoding", .string("base64")),
                ("pattern", .string("^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")),
            ])
        case .double, .float: return .object([("type", .string("number"))])
        case .int64, .sint64, .sfixed64:
            return .object([("type", .string("string")), ("pattern", .string("^(0|-?[1-9][0-9]{0,17})$"))])
        case .uint64, .fixed64:
            return .object([("type", .string("string")), ("pattern", .string("^(0|[1-9][0-9]{0,18})$"))])
        case .uint32, .fixed32:
            return .object([
                ("type", .string("integer")), ("minimum", .int(0)), ("maximum", .int(Int(UInt32.max))),
            ])
        default:
            return .object([
                ("type", .string("integer")), ("minimum", .int(Int(Int32.min))), ("maximum", .int(Int(Int32.max))),
            ])
        }
    }
}
