public import ApusCore

/// Users of a relay whose names and keys are in a file, in addition to time-limited credentials (RFC 8489 §9.2.2; D8).
///
/// The file has a line for each user, `NAME:REALM:KEY` or `NAME:REALM:KEY:KEY`. A key is `0x` and the digits of MD5
/// (32) or SHA-256 (64) over `NAME:REALM:PASSWORD`, as coturn's `turnadmin -k` prints it. Empty lines and lines that
/// begin with `#` are ignored. The file contains no passwords, but a key can be used like one: it is as secret as a
/// password.
///
/// A value; safe to share.
public struct StaticUsers: Sendable, Equatable {
    /// The most users of one file.
    public static let countMax = 65_536
    /// The longest name, in bytes.
    public static let nameByteCountMax = 128

    struct Keys: Sendable, Equatable {
        var md5: [UInt8]?
        var sha256: [UInt8]?
    }

    private var users: [String: Keys] = [:]

    public init() {}

    /// Parses the text of a file.
    ///
    /// - Parameters:
    ///   - source: The file's name, for errors.
    ///   - realm: The relay's realm. A line with another realm is refused, since its key can never match.
    /// - Throws: 10022 with the line of the first error.
    public init(_ text: String, source: String, realm: String) throws(ApusError) {
        for (index, line) in text.split(omittingEmptySubsequences: false, whereSeparator: \.isNewline).enumerated() {
            let fields = line.split(separator: ":", omittingEmptySubsequences: false).map { String($0) }
            guard let name = fields.first, !name.isEmpty || fields.count > 1, !name.hasPrefix("#") else { continue }
            func fault(_ sentence: String) -> ApusError {
                ApusError(.configurationInvalid, "\(source):\(index + 1): \(sentence)")
            }
            guard (3...4).contains(fields.count), Self.isName(name) else {
                throw fault("NAME:REALM:KEY is expected, or a second KEY after another colon")
            }
            guard fields[1] == realm else { throw fault("the key is for the realm '\(fields[1])', not '\(realm)'") }
            guard users[name] == nil else { throw fault("this user is defined twice") }
            guard users.count < Self.countMax else { throw fault("at most \(Self.countMax) users are expected") }
            var keys = Keys()
            for field in fields.dropFirst(2) {
                guard Self.take(field, into: &keys) else {
                    throw fault("a key is 0x and 32 hexadecimal digits (MD5) or 64 (SHA-256), one of each at most")
                }
            }
            users[name] = keys
        }
    }

    /// True if a name is valid in a file: 1 to 128 visible bytes without a colon, not beginning with `#`, and prepared
    /// with the OpaqueString profile, since clients' names are compared in that form.
    public static func isName(_ name: String) -> Bool {
        (1...nameByteCountMax).contains(name.utf8.count) && !name.hasPrefix("#")
            && name.utf8.allSatisfy { $0 > 0x20 && $0 != 0x3a && $0 != 0x7f }
            && OpaqueString.prepare(name)?.utf8.elementsEqual(name.utf8) == true
    }

    /// The line of a user with this password, with both keys; nil if the OpaqueString profile refuses the password (RFC
    /// 8489 §9.2.2), such as an empty one.
    public static func line(name: String, realm: String, password: String) -> String? {
        guard let password = OpaqueString.prepare(password) else { return nil }
        let md5 = StunKey(username: name, realm: realm, password: password, algorithm: .md5)
        let sha256 = StunKey(username: name, realm: realm, password: password, algorithm: .sha256)
        return "\(name):\(realm):0x\(hex(md5.bytes)):0x\(hex(sha256.bytes))"
    }

    /// The users, in the order of their names.
    public var names: [String] { users.keys.sorted() }

    func contains(_ name: String) -> Bool { users[name] != nil }

    /// The key of a user for the algorithm; nil if there is none.
    func key(of name: String, algorithm: StunPasswordAlgorithm) -> StunKey? {
        guard let keys = users[name] else { return nil }
        return (algorithm == .md5 ? keys.md5 : keys.sha256).map { StunKey(bytes: $0) }
    }

    private static func take(_ text: String, into keys: inout Keys) -> Bool {
        guard text.hasPrefix("0x"), let bytes = bytes(text.utf8.dropFirst(2)) else { return false }
        switch bytes.count {
        case 16 where keys.md5 == nil: keys.md5 = bytes
        case 32 where keys.sha256 == nil: keys.sha256 = bytes
        default: return false
        }
        return true
    }

    private static func bytes(_ digits: Substring.UTF8View) -> [UInt8]? {
        guard digits.count <= 64, digits.count.isMultiple(of: 2) else { return nil }
        var bytes: [UInt8] = []
        var high: UInt8?
        for digit in digits {
            guard let value = Character(Unicode.Scalar(digit)).hexDigitValue else { return nil }
            if let first = high {
                bytes.append(first << 4 | UInt8(value))
                high = nil
            } else {
                high = UInt8(value)
            }
        }
        return bytes
    }

    private static func hex(_ bytes: [UInt8]) -> String {
        bytes.map { ($0 < 16 ? "0" : "") + String($0, radix: 16) }.joined()
    }
}
