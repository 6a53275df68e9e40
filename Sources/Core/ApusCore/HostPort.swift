/// A host and a port, in the form `HOST:PORT` or `[V6]:PORT`.
public struct HostPort: Sendable, Hashable, CustomStringConvertible {
    /// A name or a literal address, without brackets.
    public var host: String
    /// 0 to 65535. For a listener, 0 asks the system for a free port.
    public var port: Int

    public init(host: String, port: Int) {
        self.host = host
        self.port = port
    }

    /// Parses `HOST:PORT`; nil if the text does not have that form.
    public init?(_ text: String) {
        guard let colon = text.lastIndex(of: ":"), let port = Int(text[text.index(after: colon)...]),
            (0...65_535).contains(port)
        else { return nil }
        var host = String(text[..<colon])
        if host.hasPrefix("["), host.hasSuffix("]") {
            host = String(host.dropFirst().dropLast())
        } else if host.contains(":") {
            return nil
        }
        guard !host.isEmpty else { return nil }
        self.init(host: host, port: port)
    }

    /// True for a literal loopback address, and for `localhost`. Other names may mean any address.
    public var isLoopback: Bool {
        if host.isExactly("localhost") || host.isExactly("::1") { return true }
        let parts = host.split(separator: ".", omittingEmptySubsequences: false)
        return parts.count == 4 && parts[0].elementsEqual("127")
            && parts.allSatisfy { part in (1...3).contains(part.count) && UInt8(part) != nil }
    }

    public var description: String { host.contains(":") ? "[\(host)]:\(port)" : "\(host):\(port)" }
}
