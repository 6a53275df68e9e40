import ApusTestKit
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// What one node of a cluster says over HTTP, asked without starting a program: quick enough to measure with.
struct NodeView: Sendable {
    let port: Int

    init(port: Int) { self.port = port }

    init(_ node: Int, of cluster: Cluster) { port = cluster.basePort + (node - 1) * 10 + 2 }

    struct Status: Decodable {
        struct Condition: Decodable {
            var type: String
            var message: String
            var unhealthy: Bool
        }
        struct Sessions: Decodable {
            var devices: Int
            var apps: Int
        }
        var incarnation: UInt64
        var state: String
        var sessions: Sessions
        var members: [String]
        var conditions: [Condition]?
    }

    var status: Status? {
        guard let body = get("/v1/status")?.body else { return nil }
        return try? JSONDecoder().decode(Status.self, from: Data(body.utf8))
    }

    /// The sum of a metric over its labels; nil where the node does not answer.
    func metric(_ name: String) -> Double? {
        get("/metrics")?.body.split(separator: "\n")
            .filter { $0.hasPrefix("\(name) ") || $0.hasPrefix("\(name){") }
            .compactMap { $0.split(separator: " ").last.flatMap { Double($0) } }.reduce(0, +)
    }

    /// One request on a connection of its own; nil where there is no answer within 2 s.
    func get(_ path: String) -> (status: Int, body: String)? {
        guard let socket = Self.connect(port) else { return nil }
        defer { close(socket) }
        let request = "GET \(path) HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        guard write(socket, request, request.utf8.count) == request.utf8.count else { return nil }
        var bytes: [UInt8] = []
        var part = [UInt8](repeating: 0, count: 65_536)
        while true {
            let count = read(socket, &part, part.count)
            guard count >= 0 else { return nil }
            if count == 0 { break }
            bytes += part[..<count]
        }
        let text = String(decoding: bytes, as: UTF8.self)
        guard let end = text.range(of: "\r\n\r\n"), let status = Int(text.dropFirst(9).prefix(3)) else { return nil }
        return (status, String(text[end.upperBound...]))
    }

    /// A connection to a port of 127.0.0.1 that gives up after 2 s without an answer; nil where it is refused.
    static func connect(_ port: Int) -> CInt? {
        let descriptor = socket(AF_INET, CInt(SOCK_STREAM.rawValue) | CInt(SOCK_CLOEXEC.rawValue), 0)
        guard descriptor >= 0 else { return nil }
        var limit = timeval(tv_sec: 2, tv_usec: 0)
        setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        address.sin_port = in_port_t(port).bigEndian
        address.sin_addr.s_addr = UInt32(0x7f00_0001).bigEndian
        let result = withUnsafePointer(to: &address) {
            $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                Glibc.connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
        guard result == 0 else {
            close(descriptor)
            return nil
        }
        return descriptor
    }
}

/// Asks every few milliseconds until the answer is yes; how long that took, or nil after the deadline.
func waited(_ deadline: Duration, every interval: Duration = .milliseconds(5), _ condition: () -> Bool) async
    -> Duration?
{
    let clock = ContinuousClock()
    let began = clock.now
    while true {
        let asked = clock.now
        if condition() { return clock.now - began }
        guard clock.now - began < deadline else { return nil }
        // A condition that starts a program, or reads a long file, takes a third of a processor at most.
        let pause = min((clock.now - asked) * 2, .milliseconds(250))
        try? await Task.sleep(for: max(interval, pause))
    }
}

extension Cluster {
    /// The process number of a node.
    func pid(_ node: Int) throws -> pid_t {
        let text = Cluster.text(file("n\(node)/pid")).trimmingCharacters(in: .whitespacesAndNewlines)
        guard let pid = pid_t(text) else { throw TestFailure("node \(node) has no process") }
        return pid
    }
}
