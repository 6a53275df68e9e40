import ApusCore

/// The address of a network camera: `rtsp://USER:PASSWORD@HOST:PORT/PATH`, or `rtsps://` for TLS.
///
/// A password may contain `/`, `?` and `#` as they are: text before an `@` belongs to the user's part if it could not
/// be a host and a port. `%` followed by two hexadecimal digits is a byte, as in every URL.
///
/// Logs show ``shown`` alone. Cameras take passwords in the path too, such as `/user=admin&password=secret`.
package struct CameraAddress: Sendable, Hashable {
    package static let portDefault: UInt16 = 554
    package static let securePortDefault: UInt16 = 322

    package let isSecure: Bool
    package var user: String?
    package var password: String?
    /// A name or a numeric address, without brackets.
    package let host: String
    package let port: UInt16
    /// The path and the query, as the camera receives them; empty or from `/` on.
    package let target: String

    /// Parses an address; nil if it is not one.
    package init?(_ text: String) {
        // The bytes of a text decide, not its characters.
        let bytes = Array(text.utf8)
        guard let (isSecure, start) = Self.scheme(of: bytes),
            bytes.allSatisfy({ $0 > 0x20 && $0 != 0x7f }), bytes.count <= Self.byteCountMax
        else { return nil }
        self.isSecure = isSecure
        let rest = bytes[start...]
        let ports = isSecure ? Self.securePortDefault : Self.portDefault
        guard let place = Self.place(in: rest, portDefault: ports) else { return nil }
        (host, port) = (place.host, place.port)
        target = String(decoding: rest[place.end...].prefix { $0 != UInt8(ascii: "#") }, as: UTF8.self)
        guard place.start > rest.startIndex else { return }
        let credentials = rest[..<(place.start - 1)]
        let colon = credentials.firstIndex(of: UInt8(ascii: ":"))
        user = Self.decoded(credentials[..<(colon ?? credentials.endIndex)])
        password = colon.map { Self.decoded(credentials[($0 + 1)...]) }
    }

    /// The longest address, in bytes.
    private static let byteCountMax = 4096

    /// The address without user and password, as requests name it.
    package var url: String { "\(shown)\(target)" }

    /// The camera as logs and messages name it: its host and port alone.
    package var shown: String { "\(isSecure ? "rtsps" : "rtsp")://\(host.contains(":") ? "[\(host)]" : host):\(port)" }

    private static func scheme(of bytes: [UInt8]) -> (isSecure: Bool, start: Int)? {
        for (scheme, isSecure) in [("rtsp://", false), ("rtsps://", true)] {
            let head = bytes.prefix(scheme.utf8.count).map { $0 | ($0 >= 0x41 && $0 <= 0x5a ? 0x20 : 0) }
            if head == Array(scheme.utf8) { return (isSecure, head.count) }
        }
        return nil
    }

    /// A host and port, which begin at an index, and what follows them begins at another.
    private struct Place {
        var start: Int
        var end: Int
        var host: String
        var port: UInt16
    }

    private static func place(in rest: ArraySlice<UInt8>, portDefault: UInt16) -> Place? {
        let end = rest.firstIndex { isDelimiter($0) } ?? rest.endIndex
        // The usual form: the last @ before the path.
        if let at = rest[..<end].lastIndex(of: UInt8(ascii: "@")) {
            if let found = authority(rest[(at + 1)...], portDefault) { return found }
        } else if let found = authority(rest, portDefault) {
            return found
        }
        // A password with a delimiter.
        var from = end
        while let at = rest[from...].firstIndex(of: UInt8(ascii: "@")) {
            if let found = authority(rest[(at + 1)...], portDefault) { return found }
            from = at + 1
        }
        return nil
    }

    /// A host with an optional port, up to a delimiter or the end.
    private static func authority(_ bytes: ArraySlice<UInt8>, _ portDefault: UInt16) -> Place? {
        let end = bytes.firstIndex { isDelimiter($0) } ?? bytes.endIndex
        var name = bytes[..<end]
        var port: UInt16? = portDefault
        var isNumeric = false
        if name.first == UInt8(ascii: "[") {
            guard let close = name.firstIndex(of: UInt8(ascii: "]")) else { return nil }
            let after = name[(close + 1)...]
            guard after.isEmpty || after.first == UInt8(ascii: ":") else { return nil }
            if after.count > 1 { port = UInt16(String(decoding: after.dropFirst(), as: UTF8.self)) }
            name = name[(name.startIndex + 1)..<close]
            isNumeric = true
        } else if let colon = name.firstIndex(of: UInt8(ascii: ":")) {
            port = UInt16(String(decoding: name[(colon + 1)...], as: UTF8.self))
            name = name[..<colon]
        }
        guard let port, port > 0, !name.isEmpty, name.count <= 253,
            name.allSatisfy({ isNameByte($0) || isNumeric && ($0 == UInt8(ascii: ":") || $0 == UInt8(ascii: "%")) })
        else { return nil }
        return Place(start: bytes.startIndex, end: end, host: String(decoding: name, as: UTF8.self), port: port)
    }

    private static func isDelimiter(_ byte: UInt8) -> Bool {
        byte == UInt8(ascii: "/") || byte == UInt8(ascii: "?") || byte == UInt8(ascii: "#")
    }

    /// Letters, digits, `-`, `.`, `_`, and bytes of other scripts.
    private static func isNameByte(_ byte: UInt8) -> Bool {
        switch byte {
        case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
            UInt8(ascii: "0")...UInt8(ascii: "9"), UInt8(ascii: "-"), UInt8(ascii: "."), UInt8(ascii: "_"), 0x80...0xff:
            true
        default: false
        }
    }

    /// The text with its escaped bytes; a `%` without two digits stands for itself.
    private static func decoded(_ bytes: ArraySlice<UInt8>) -> String {
        var (result, index) = ([UInt8](), bytes.startIndex)
        while index < bytes.endIndex {
            if bytes[index] == UInt8(ascii: "%"), bytes.endIndex - index > 2,
                let high = hexadecimal(bytes[index + 1]), let low = hexadecimal(bytes[index + 2])
            {
                result.append(high << 4 | low)
                index += 3
            } else {
                result.append(bytes[index])
                index += 1
            }
        }
        return String(decoding: result, as: UTF8.self)
    }

    /// The value of a hexadecimal digit.
    static func hexadecimal(_ byte: UInt8) -> UInt8? {
        switch byte {
        case UInt8(ascii: "0")...UInt8(ascii: "9"): byte - UInt8(ascii: "0")
        case UInt8(ascii: "a")...UInt8(ascii: "f"): byte - UInt8(ascii: "a") + 10
        case UInt8(ascii: "A")...UInt8(ascii: "F"): byte - UInt8(ascii: "A") + 10
        default: nil
        }
    }
}
