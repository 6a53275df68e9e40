import ApusCore
import ApusSessions

/// IV-A6: the payload of a token is read as it was signed, by whoever holds the key; the reader bounds what it makes.
func fuzzClaims(_ input: [UInt8]) {
    guard let json = JSONValue(input[...]) else { return }
    precondition(depth(of: json) <= JSONValue.depthMax, "a value is nested too deeply")
    precondition(JSONValue(([0x20] + input + [0x0a])[...]) == json, "space around a value changes it")
    guard let claims = TokenClaims(json) else { return }
    precondition(json["sub"]?.string == claims.sub && json["exp"]?.integer == claims.exp, "a claim is read otherwise")
}

private func depth(of json: JSONValue) -> Int {
    switch json {
    case .null, .bool, .number, .string: 0
    case .array(let elements): 1 + (elements.map { depth(of: $0) }.max() ?? 0)
    case .object(let members): 1 + (members.map { depth(of: $0.value) }.max() ?? 0)
    }
}
