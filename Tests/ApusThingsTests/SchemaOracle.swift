import ApusCore

/// Random schemas and values, and what the standard says of them, written as plainly as possible: the schema is read
/// from its document each time, numbers are doubles, and texts are ASCII. For comparison with the compiled schema.
struct SchemaOracle {
    var random: SeededRandom

    private static let numbers = ["0", "1", "1.0", "-1", "2", "2.5", "3", "10", "1e1", "-0.5"]
    private static let texts = ["", "a", "b", "ab", "abc"]
    static let names = ["a", "b", "c"]

    private mutating func chance(_ percent: Int) -> Bool { Int.random(in: 0..<100, using: &random) < percent }
    private mutating func pick<Element>(_ elements: [Element]) -> Element {
        elements[Int.random(in: 0..<elements.count, using: &random)]
    }

    // MARK: Random documents

    mutating func scalar() -> String {
        switch Int.random(in: 0..<6, using: &random) {
        case 0: "null"
        case 1: chance(50) ? "true" : "false"
        case 2: "\"\(pick(Self.texts))\""
        default: pick(Self.numbers)
        }
    }

    mutating func value(depth: Int) -> String {
        guard depth > 0, chance(60) else { return scalar() }
        let count = Int.random(in: 0...3, using: &random)
        if chance(30) { return "[\((0..<count).map { _ in value(depth: depth - 1) }.joined(separator: ","))]" }
        let members = Self.names.shuffled(using: &random).prefix(count).map { "\"\($0)\":\(value(depth: depth - 1))" }
        return "{\(members.joined(separator: ","))}"
    }

    mutating func schema(depth: Int) -> String {
        if chance(8) { return chance(70) ? "true" : "false" }
        var members: [String] = []
        if chance(50) { members.append("\"type\":\(types())") }
        if chance(15) { members.append("\"enum\":[\((0..<3).map { _ in scalar() }.joined(separator: ","))]") }
        if chance(5) { members.append("\"const\":\(scalar())") }
        for keyword in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"] where chance(12) {
            members.append("\"\(keyword)\":\(pick(Self.numbers))")
        }
        for keyword in ["minLength", "maxLength", "minItems", "maxItems"] where chance(12) {
            members.append("\"\(keyword)\":\(Int.random(in: 0...3, using: &random))")
        }
        guard depth > 0 else { return "{\(members.joined(separator: ","))}" }
        if chance(25) { members.append("\"items\":\(schema(depth: depth - 1))") }
        if chance(60) { members.append("\"properties\":\(properties(Self.names, depth: depth - 1))") }
        if chance(20) {
            let names = Self.names.shuffled(using: &random).prefix(Int.random(in: 0...2, using: &random))
            members.append("\"required\":[\(names.map { "\"\($0)\"" }.joined(separator: ","))]")
        }
        if chance(30) { members.append("\"additionalProperties\":\(schema(depth: depth - 1))") }
        return "{\(members.joined(separator: ","))}"
    }

    private mutating func types() -> String {
        let names = ["null", "boolean", "integer", "number", "string", "array", "object", "object", "object"]
        if chance(60) { return "\"\(pick(names))\"" }
        let some = Set(names).sorted().shuffled(using: &random).prefix(Int.random(in: 1...4, using: &random))
        return "[\(some.map { "\"\($0)\"" }.joined(separator: ","))]"
    }

    mutating func properties(_ names: [String], depth: Int) -> String {
        let listed = names.filter { _ in chance(60) }.map { "\"\($0)\":\(schema(depth: depth))" }
        return "{\(listed.joined(separator: ","))}"
    }

    // MARK: The standard

    static func fits(_ value: JSONValue, _ schema: JSONValue) -> Bool {
        guard case .object(let rules) = schema else { return schema == .bool(true) }
        return rules.allSatisfy { fits(value, $0.name, $0.value, in: schema) }
    }

    private static func fits(
        _ value: JSONValue, _ keyword: String, _ rule: JSONValue, in schema: JSONValue
    ) -> Bool {
        switch keyword {
        case "type": (rule.string.map { [$0] } ?? list(rule).compactMap(\.string)).contains { isType(value, $0) }
        case "enum": list(rule).contains { equal($0, value) }
        case "const": equal(rule, value)
        case "minimum": compare(value, rule) { $0 >= $1 }
        case "maximum": compare(value, rule) { $0 <= $1 }
        case "exclusiveMinimum": compare(value, rule) { $0 > $1 }
        case "exclusiveMaximum": compare(value, rule) { $0 < $1 }
        case "minLength": value.string.map { $0.utf8.count >= Int(double(rule) ?? 0) } ?? true
        case "maxLength": value.string.map { $0.utf8.count <= Int(double(rule) ?? 0) } ?? true
        case "minItems": isType(value, "array") ? list(value).count >= Int(double(rule) ?? 0) : true
        case "maxItems": isType(value, "array") ? list(value).count <= Int(double(rule) ?? 0) : true
        case "items": list(value).allSatisfy { fits($0, rule) }
        case "properties":
            members(value).allSatisfy { member in rule[member.name].map { fits(member.value, $0) } ?? true }
        case "required":
            isType(value, "object") ? list(rule).compactMap(\.string).allSatisfy { value[$0] != nil } : true
        case "additionalProperties":
            members(value).allSatisfy { schema["properties"]?[$0.name] != nil || fits($0.value, rule) }
        default: false
        }
    }

    private static func isType(_ value: JSONValue, _ name: String) -> Bool {
        switch value {
        case .null: name == "null"
        case .bool: name == "boolean"
        case .number: name == "number" || (name == "integer" && double(value) == double(value)?.rounded())
        case .string: name == "string"
        case .array: name == "array"
        case .object: name == "object"
        }
    }

    private static func equal(_ left: JSONValue, _ right: JSONValue) -> Bool {
        if let left = double(left), let right = double(right) { return left == right }
        return left == right
    }

    private static func compare(_ value: JSONValue, _ rule: JSONValue, _ body: (Double, Double) -> Bool) -> Bool {
        guard let number = double(value), let bound = double(rule) else { return true }
        return body(number, bound)
    }

    private static func double(_ value: JSONValue) -> Double? {
        guard case .number(let text) = value else { return nil }
        return Double(text)
    }

    private static func list(_ value: JSONValue) -> [JSONValue] {
        guard case .array(let elements) = value else { return [] }
        return elements
    }

    private static func members(_ value: JSONValue) -> [JSONValue.Member] {
        guard case .object(let members) = value else { return [] }
        return members
    }
}
