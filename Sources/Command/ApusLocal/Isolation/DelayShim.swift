package import ApusCore
import CApusNamespaces
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// Delays all packets that one endpoint of an isolated cluster sends, in place of netem, which kernels may lack. It
/// runs in the namespace of the endpoint until the wanted faults contain no delay for it.
///
/// It makes a tun device, and routes to it for the two halves of the network. These routes are preferred to the one of
/// the endpoint's interface, because they are more specific. A packet from the device is sent after the delay through
/// a socket that is bound to the interface, which does not use those routes. When the process ends, also by a signal,
/// its device and routes disappear, and packets are sent without delay again. Packets that wait then are lost.
///
/// Limits: IPv4. A packet may be late by a millisecond, the resolution of poll(2).
/// Isolation: used by the one thread of its process.
package struct DelayShim {
    /// The tun device.
    static let device = "delay"
    /// The packets that the kernel keeps until they are read; a further one is dropped.
    fileprivate static let kernelPacketsMax = 10_000
    /// How often the wanted delay is looked up.
    static let lookupInterval = Duration.milliseconds(20)
    /// The maximum number of packets that are read at once, before those that are due are sent.
    private static let turnPacketsMax = 256
    /// The maximum size of a packet, in bytes.
    private static let packetByteCountMax = 65_536

    private let directory: StateDirectory
    private let name: String
    private let tunnel: Int32
    private let socket: Int32
    private var queue = DelayQueue()
    private var droppedCount = 0
    private var delay = Duration.zero
    /// The version of the file of the faults that was read last.
    private var version: Version?

    private struct Version: Equatable {
        var file: UInt64
        var modified: Date?
    }

    /// Opens the device and the socket, in the namespace of this process.
    /// - Throws: 10022 without /dev/net/tun or without the rights for it.
    package init(of name: String, in directory: StateDirectory) throws(ApusError) {
        self.directory = directory
        self.name = name
        tunnel = apus_tunnel_open(Self.device)
        guard tunnel >= 0 else {
            throw ApusError(
                .configurationInvalid,
                "a tun device cannot be made: \(String(cString: strerror(-tunnel))); delays need /dev/net/tun and root")
        }
        socket = apus_packet_open(NetworkPlan.interface)
        guard socket >= 0 else {
            close(tunnel)
            throw ApusError(
                .configurationInvalid, "a raw socket cannot be opened: \(String(cString: strerror(-socket)))")
        }
    }

    /// Delays packets until no delay is wanted.
    /// - Throws: 10018 if the system refuses a step, 10020, 10021 and 10022 if the state directory is not that of an
    ///   isolated cluster with this endpoint.
    package mutating func run() throws(ApusError) {
        defer {
            close(tunnel)
            close(socket)
        }
        let network = try IsolatedNetwork(try directory.requireMark(), in: directory)
        guard let endpoint = network.endpoints.first(where: { $0.name == name }) else {
            throw ApusError(.configurationInvalid, "the network has no endpoint \(name)")
        }
        try readDelay()
        guard delay > .zero else { return }
        for command in network.plan.delayCommands(for: endpoint) { try SystemTool.run(command) }
        var bytes = [UInt8](repeating: 0, count: Self.packetByteCountMax)
        var lookup = MonotonicTime.now() + Self.lookupInterval
        while true {
            wait(until: min(lookup, queue.due ?? lookup))
            receive(&bytes)
            let now = MonotonicTime.now()
            while let packet = queue.next(at: now) { send(packet) }
            guard now >= lookup else { continue }
            lookup = now + Self.lookupInterval
            try readDelay()
            if delay == .zero { return }
        }
    }

    /// Reads the wanted delay if the file has changed. It is replaced as a whole, so a change is a new file.
    private mutating func readDelay() throws(ApusError) {
        guard let found = try? FileManager.default.attributesOfItem(atPath: directory.faultsFile) else {
            delay = .zero
            return
        }
        let version = Version(
            file: found[.systemFileNumber] as? UInt64 ?? 0, modified: found[.modificationDate] as? Date)
        guard version != self.version else { return }
        self.version = version
        delay = .milliseconds(try directory.faults().delays[name] ?? 0)
    }

    /// Waits for a packet, or for a time, rounded up to milliseconds.
    private func wait(until time: MonotonicTime) {
        let rest = time - MonotonicTime.now()
        var ready = pollfd(fd: tunnel, events: Int16(POLLIN), revents: 0)
        poll(&ready, 1, rest > .zero ? Int32(rest.milliseconds.rounded(.up)) : 0)
    }

    private mutating func receive(_ bytes: inout [UInt8]) {
        for _ in 0..<Self.turnPacketsMax {
            let count = read(tunnel, &bytes, bytes.count)
            guard count > 0 else { return }
            // Others than IPv4, such as the router solicitations of IPv6, have no receiver here.
            guard count >= 20, bytes[0] >> 4 == 4 else { continue }
            if !queue.add(Array(bytes[..<count]), at: .now(), delay: delay) { dropped() }
        }
    }

    private mutating func dropped() {
        droppedCount += 1
        if droppedCount == 1 { Console.warn("The delay's queue is full: packets of \(name) are dropped") }
    }

    /// A packet that the system refuses is lost, as it may be in any network.
    private func send(_ packet: [UInt8]) {
        var address = sockaddr_in()
        address.sin_family = sa_family_t(AF_INET)
        withUnsafeMutableBytes(of: &address.sin_addr) { $0.copyBytes(from: packet[16..<20]) }
        withUnsafePointer(to: &address) { pointer in
            // SAFETY: a socket address of IPv4, with its length.
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                let flags = Int32(truncatingIfNeeded: MSG_DONTWAIT | MSG_NOSIGNAL)
                _ = sendto(socket, packet, packet.count, flags, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
            }
        }
    }
}

extension NetworkPlan {
    /// Routes the network to the device of a delay, in the namespace of an endpoint, except the operator's address.
    fileprivate func delayCommands(for endpoint: Endpoint) -> [[String]] {
        let (device, source) = (DelayShim.device, ["src", endpoint.address])
        let count = "\(DelayShim.kernelPacketsMax)"
        return [
            ["ip", "link", "set", "dev", device, "txqueuelen", count, "up"],
            ["ip", "route", "replace", "\(operatorAddress)/32", "dev", Self.interface] + source,
            ["ip", "route", "replace", "\(subnet).0/25", "dev", device] + source,
            ["ip", "route", "replace", "\(subnet).128/25", "dev", device] + source,
        ]
    }
}
