import ApusCore
import Foundation

/// The URL of a hook: `http` or `https`, a host, a port, a path and a query (RFC 3986 §3), but neither a user nor a
/// fragment.
///
/// `FieldRule.hookURL` describes the same syntax for clients.
package struct HookURL: Sendable, Hashable {
    /// A name, an IPv4 address, or an IPv6 address in brackets. Only operators can name an IPv6 address.
    package let host: String

    /// - Returns: nil if the text is not such a URL, or is longer than ``EventConfiguration/urlByteCountMax``.
    package init?(_ text: String) {
        guard text.utf8.count <= EventConfiguration.urlByteCountMax, let url = URLComponents(string: text),
            let scheme = url.scheme, ["http", "https"].contains(scheme), let host = url.host, Self.isHost(host),
            (1...65_535).contains(url.port ?? 80)
        else { return nil }
        // The text must begin with exactly these parts. A user, a fragment or another form of the port would differ.
        let origin = "\(scheme)://\(host)\(url.port.map { ":\($0)" } ?? "")"
        guard text.hasPrefix(origin), Self.isPath(text.utf8.dropFirst(origin.utf8.count)) else { return nil }
        self.host = host
    }

    private static func isHost(_ host: String) -> Bool {
        if host.hasPrefix("["), host.hasSuffix("]") {
            let address = host.dropFirst().dropLast()
            return !address.isEmpty && address.utf8.allSatisfy { "0123456789abcdefABCDEF:.".utf8.contains($0) }
        }
        let labels = host.split(separator: ".", omittingEmptySubsequences: false)
        return labels.allSatisfy { AccessID(rawValue: String($0)) != nil }
    }

    /// Whether the text is empty, or a path or query of valid characters and percent-encoded bytes.
    private static func isPath(_ text: Substring.UTF8View) -> Bool {
        var text = text
        guard let first = text.first else { return true }
        guard first == UInt8(ascii: "/") || first == UInt8(ascii: "?") else { return false }
        while let byte = text.popFirst() {
            if byte == UInt8(ascii: "%") {
                guard text.count >= 2, text.prefix(2).allSatisfy({ hexadecimals.contains($0) }) else { return false }
                text = text.dropFirst(2)
            } else if !characters.contains(byte) {
                return false
            }
        }
        return true
    }

    private static let hexadecimals = Set("0123456789abcdefABCDEF".utf8)
    private static let characters = Set(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:/?@!$&'()*+,;=".utf8)
}
