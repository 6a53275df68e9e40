import ApusTestKit
import Foundation
import Synchronization
import Testing

/// The service manager's end of `$NOTIFY_SOCKET`.
private final class NotifySocket: Sendable {
    let path: String
    private let descriptor: Int32
    private let heard = Mutex<[String]>([])

    init() throws {
        let path = "/tmp/apus-notify-\(UInt32.random(in: .min ... .max))"
        self.path = path
        descriptor = socket(AF_UNIX, Int32(SOCK_DGRAM.rawValue | SOCK_NONBLOCK.rawValue), 0)
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        // SAFETY: the path is shorter than `sun_path`, and the pointer does not leave the closure.
        let bound = withUnsafeMutableBytes(of: &address) { bytes in
            for (index, byte) in path.utf8.enumerated() { bytes[2 + index] = byte }
            let base = bytes.baseAddress.unsafelyUnwrapped.assumingMemoryBound(to: sockaddr.self)
            return bind(descriptor, base, socklen_t(MemoryLayout<sockaddr_un>.size))
        }
        try #require(bound == 0)
    }

    deinit {
        close(descriptor)
        unlink(path)
    }

    /// All that was told so far.
    var states: [String] {
        var buffer = [UInt8](repeating: 0, count: 512)
        while true {
            let count = recv(descriptor, &buffer, buffer.count, 0)
            guard count > 0 else { break }
            heard.withLock { $0.append(String(decoding: buffer.prefix(count), as: UTF8.self)) }
        }
        return heard.withLock { $0 }
    }
}

@Suite("A relay under a service manager (sd_notify(3), D13)", .serialized)
struct NotifyTests {
    private static let unit: String = {
        let folder = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        return folder.appending(path: "../../cluster-configs/apus-relay.service").standardizedFileURL.path
    }()

    @Test("It is ready when its listeners are open, then alive again and again, and says that it stops")
    func states() async throws {
        let manager = try NotifySocket()
        let relay = try await ConfiguredRelay(
            keys: "open: loopback\n",
            prefix: ["NOTIFY_SOCKET=\(manager.path)", "WATCHDOG_USEC=200000"])
        try await eventually("the relay is ready, and alive three times") {
            manager.states.count { $0 == "WATCHDOG=1" } >= 3
        }
        #expect(manager.states.first == "READY=1")
        #expect(manager.states.count { $0 == "READY=1" } == 1)
        // A process that does nothing is told alive by nobody.
        kill(relay.child.id, SIGSTOP)
        try await eventually("it stands still") {
            let stat = try String(contentsOfFile: "/proc/\(relay.child.id)/stat", encoding: .utf8)
            return stat.split(separator: ")").last?.hasPrefix(" T") == true
        }
        let before = manager.states.count
        try await Task.sleep(for: .milliseconds(600))
        #expect(manager.states.count == before)
        kill(relay.child.id, SIGCONT)
        try await eventually("it is alive again") { manager.states.count > before }
        relay.child.terminate()
        #expect(relay.child.status == 0, "\(relay.child.errors)")
        #expect(manager.states.last?.hasPrefix("STOPPING=1") == true)
    }

    @Test("Where its clients may take longer to go than the manager waits, it asks for that time when it stops")
    func longStop() async throws {
        let manager = try NotifySocket()
        let relay = try await ConfiguredRelay(
            keys: "open: loopback\ndrain_wait: 20m\n", prefix: ["NOTIFY_SOCKET=\(manager.path)"])
        try await eventually("the relay is ready") { manager.states.first == "READY=1" }
        relay.child.terminate()
        #expect(relay.child.status == 0, "\(relay.child.errors)")
        let last = try #require(manager.states.last).split(separator: "\n")
        #expect(last.first == "STOPPING=1")
        let asked = last.compactMap { $0.hasPrefix("EXTEND_TIMEOUT_USEC=") ? Int($0.dropFirst(20)) : nil }
        #expect(asked.count == 1 && asked.allSatisfy { $0 >= 1_200_000_000 && $0 < 1_300_000_000 }, "\(last)")
    }

    @Test("A manager that is not there stops nothing")
    func absent() async throws {
        let relay = try await ConfiguredRelay(
            keys: "open: loopback\n", prefix: ["NOTIFY_SOCKET=/nonexistent/notify", "WATCHDOG_USEC=100000"])
        relay.child.terminate()
        #expect(relay.child.status == 0, "\(relay.child.errors)")
    }

    @Test("The unit starts the relay by this binary's own options, notifies, and is hardened")
    func unit() throws {
        let lines = try String(contentsOfFile: Self.unit, encoding: .utf8).split(separator: "\n").map { String($0) }
        for line in [
            "Type=notify", "WatchdogSec=30s", "ExecReload=/bin/kill -HUP $MAINPID", "NoNewPrivileges=yes",
            "ProtectSystem=strict", "TimeoutStopSec=30s", "MemoryDenyWriteExecute=yes",
            "CapabilityBoundingSet=CAP_NET_BIND_SERVICE",
        ] {
            #expect(lines.contains(line), "\(line)")
        }
        let start = try #require(lines.first { $0.hasPrefix("ExecStart=") })
        #expect(start == "ExecStart=/usr/local/bin/apus relay serve --config /etc/apus/relay.yaml")
    }
}
