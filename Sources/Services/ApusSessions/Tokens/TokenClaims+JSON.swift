package import ApusCore

extension TokenClaims {
    /// Nil if a required claim is missing, or a claim has the wrong type. Unknown claims are ignored.
    package init?(_ json: JSONValue) {
        guard let sub = json["sub"]?.string, let acct = json["acct"]?.string, let role = json["role"]?.string,
            let exp = json["exp"]?.integer, let iat = json["iat"]?.integer, let iss = json["iss"]?.string,
            let dev = Self.optional(json["dev"], { $0.string }), let jti = Self.optional(json["jti"], { $0.string }),
            let nbf = Self.optional(json["nbf"], { $0.integer }),
            let devices = Self.optional(json["devices"], Self.strings),
            let once = Self.optional(json["once"], Self.flag)
        else { return nil }
        self.init(
            sub: sub, acct: acct, role: role, dev: dev, devices: devices, exp: exp, iat: iat, nbf: nbf, iss: iss,
            jti: jti, once: once)
    }

    /// Treats absent and null alike. Returns nil if the value is invalid.
    private static func optional<Value>(_ json: JSONValue?, _ read: (JSONValue) -> Value?) -> Value?? {
        guard let json, json != .null else { return .some(nil) }
        return read(json).map { .some($0) }
    }

    private static func flag(_ json: JSONValue) -> Bool? {
        if case .bool(let flag) = json { flag } else { nil }
    }

    private static func strings(_ json: JSONValue) -> [String]? {
        guard case .array(let elements) = json else { return nil }
        let strings = elements.compactMap(\.string)
        return strings.count == elements.count ? strings : nil
    }
}
