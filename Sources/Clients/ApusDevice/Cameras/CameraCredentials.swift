import ApusCore
import ApusCrypto
import Foundation

/// Answers a camera's requests for a name and a password: Digest with SHA-256 or MD5 (RFC 7616, RFC 2069), or Basic
/// (RFC 7617).
///
/// Of several challenges the strongest is answered. A challenge with `stale`, or with another nonce than the one that
/// was used, asks for another answer and is not a refusal: cameras issue a nonce for each request. Pure value.
package struct CameraCredentials: Sendable {
    /// A challenge of `WWW-Authenticate`.
    package struct Challenge: Sendable, Equatable {
        package var scheme: String
        /// By their names in lower case.
        package var parameters: [String: String]
    }

    private enum Method {
        case basic
        case digest(Digest)
    }

    private struct Digest {
        var algorithm: Algorithm
        var realm: String
        var nonce: String
        var opaque: String?
        var hasQuality: Bool
        /// The number of requests with this nonce.
        var count: UInt32 = 0
    }

    private enum Algorithm: String {
        case sha256 = "SHA-256"
        case sha256Session = "SHA-256-sess"
        case md5 = "MD5"
        case md5Session = "MD5-sess"

        var isSession: Bool { self == .sha256Session || self == .md5Session }
        var isStrong: Bool { self == .sha256 || self == .sha256Session }

        func hash(_ text: String) -> String {
            let bytes = Data(text.utf8)
            return isStrong ? hexadecimal(SHA256.hash(data: bytes)) : hexadecimal(Insecure.MD5.hash(data: bytes))
        }

        private func hexadecimal(_ digest: some Sequence<UInt8>) -> String {
            let digits = Array("0123456789abcdef".utf8)
            return String(decoding: digest.flatMap { [digits[Int($0 >> 4)], digits[Int($0 & 15)]] }, as: UTF8.self)
        }
    }

    private let user: String
    private let password: String
    private let clientNonce: String
    private var method: Method?

    /// - Parameter clientNonce: random hexadecimal digits.
    package init(user: String, password: String, clientNonce: String) {
        (self.user, self.password, self.clientNonce) = (user, password, clientNonce)
    }

    /// Takes the challenges of a refused request.
    ///
    /// - Returns: false if none can be answered.
    package mutating func take(_ challenges: [Challenge]) -> Bool {
        let digests = challenges.compactMap(Self.digest)
        if let best = digests.first(where: \.algorithm.isStrong) ?? digests.first {
            method = .digest(best)
            return true
        }
        guard challenges.contains(where: { $0.scheme.lowercased() == "basic" }) else { return false }
        method = .basic
        return true
    }

    /// The nonce with which requests are answered now; nil without Digest.
    package var nonce: String? {
        guard case .digest(let digest) = method else { return nil }
        return digest.nonce
    }

    /// The field `Authorization` of a request; nil before a challenge.
    package mutating func authorization(method name: String, uri: String) -> String? {
        switch method {
        case nil: return nil
        case .basic: return "Basic \(Data("\(user):\(password)".utf8).base64EncodedString())"
        case .digest(var digest):
            digest.count += 1
            method = .digest(digest)
            return answer(digest, name, uri)
        }
    }

    /// RFC 7616 §3.4.
    private func answer(_ digest: Digest, _ name: String, _ uri: String) -> String {
        let hash = digest.algorithm.hash
        let count = String(digest.count, radix: 16)
        let padded = String(repeating: "0", count: 8 - count.utf8.count) + count
        var first = hash("\(user):\(digest.realm):\(password)")
        if digest.algorithm.isSession { first = hash("\(first):\(digest.nonce):\(clientNonce)") }
        let second = hash("\(name):\(uri)")
        let response =
            digest.hasQuality
            ? hash("\(first):\(digest.nonce):\(padded):\(clientNonce):auth:\(second)")
            : hash("\(first):\(digest.nonce):\(second)")
        var fields = [
            "username=\(Self.quoted(user))", "realm=\(Self.quoted(digest.realm))",
            "nonce=\(Self.quoted(digest.nonce))", "uri=\(Self.quoted(uri))", "response=\"\(response)\"",
        ]
        // Many cameras with MD5 know no algorithm, and refuse the field.
        if digest.algorithm != .md5 { fields.append("algorithm=\(digest.algorithm.rawValue)") }
        if let opaque = digest.opaque { fields.append("opaque=\(Self.quoted(opaque))") }
        if digest.hasQuality { fields += ["qop=auth", "nc=\(padded)"] }
        if digest.hasQuality || digest.algorithm.isSession { fields.append("cnonce=\"\(clientNonce)\"") }
        return "Digest \(fields.joined(separator: ", "))"
    }

    private static func quoted(_ text: String) -> String {
        var bytes = [UInt8(ascii: "\"")]
        for byte in text.utf8 {
            if byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "\\") { bytes.append(UInt8(ascii: "\\")) }
            bytes.append(byte)
        }
        return String(decoding: bytes + [UInt8(ascii: "\"")], as: UTF8.self)
    }

    /// Nil for another scheme, or one that cannot be answered.
    private static func digest(_ challenge: Challenge) -> Digest? {
        guard challenge.scheme.lowercased() == "digest", let realm = challenge.parameters["realm"],
            let nonce = challenge.parameters["nonce"]
        else { return nil }
        let name = (challenge.parameters["algorithm"] ?? "MD5").lowercased()
        let known: [Algorithm] = [.sha256, .sha256Session, .md5, .md5Session]
        guard let algorithm = known.first(where: { $0.rawValue.lowercased() == name }) else { return nil }
        let qualities = challenge.parameters["qop"].map { $0.lowercased().split { $0 == "," || $0 == " " } }
        guard qualities?.contains("auth") ?? true else { return nil }
        return Digest(
            algorithm: algorithm, realm: realm, nonce: nonce, opaque: challenge.parameters["opaque"],
            hasQuality: qualities != nil)
    }

    // MARK: - Parsing

    /// The challenges of a field `WWW-Authenticate` (RFC 9110 §11.6.1): schemes with parameters, separated by commas.
    package static func challenges(_ field: String) -> [Challenge] {
        var scanner = FieldScanner(field)
        var found: [Challenge] = []
        while let name = scanner.token() {
            guard scanner.take("=") else {
                found.append(Challenge(scheme: name, parameters: [:]))
                continue
            }
            let value = scanner.value()
            guard !found.isEmpty else { continue }
            found[found.count - 1].parameters[name.lowercased()] = value
        }
        return found
    }
}

/// Reads the tokens and quoted texts of a header field.
private struct FieldScanner {
    private let bytes: [UInt8]
    private var index = 0

    init(_ text: String) { bytes = Array(text.utf8) }

    private mutating func skip(_ characters: String = "") {
        while index < bytes.count, bytes[index] <= 0x20 || characters.utf8.contains(bytes[index]) { index += 1 }
    }

    /// The next token, behind everything that cannot begin one; nil at the end.
    mutating func token() -> String? {
        skip(",=\"")
        let start = index
        while index < bytes.count, bytes[index] > 0x20, !",=\"".utf8.contains(bytes[index]) { index += 1 }
        return index > start ? String(decoding: bytes[start..<index], as: UTF8.self) : nil
    }

    mutating func take(_ character: Character) -> Bool {
        skip()
        guard index < bytes.count, bytes[index] == character.asciiValue else { return false }
        index += 1
        return true
    }

    /// A token, or a quoted text without its quotes and escapes.
    mutating func value() -> String {
        skip()
        guard index < bytes.count, bytes[index] == UInt8(ascii: "\"") else {
            let start = index
            while index < bytes.count, bytes[index] > 0x20, bytes[index] != UInt8(ascii: ",") { index += 1 }
            return String(decoding: bytes[start..<index], as: UTF8.self)
        }
        index += 1
        var text: [UInt8] = []
        while index < bytes.count, bytes[index] != UInt8(ascii: "\"") {
            if bytes[index] == UInt8(ascii: "\\"), index + 1 < bytes.count { index += 1 }
            text.append(bytes[index])
            index += 1
        }
        index += 1
        return String(decoding: text, as: UTF8.self)
    }
}
