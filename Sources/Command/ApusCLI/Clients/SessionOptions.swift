import ApusClient
import ApusCore
import ApusSessions
import ArgumentParser
import Logging
import Synchronization

/// What verbs take that sign in as an app or a device, make requests, and end.
struct SessionOptions: ParsableArguments {
    @Option(help: "Set the access id of this client. Default: a random one.") var access: String?
    @OptionGroup var connection: ConnectOptions
    @OptionGroup var output: OutputOptions

    /// Runs the work with a session of an app, or of a device, until it ends or is ended.
    ///
    /// - Throws: as the work; 12001 to 12003 if the session ends.
    func run(
        as device: DeviceID? = nil, seconds: Double? = nil,
        _ work: @escaping @Sendable (ClientSession) async throws(ApusError) -> Void
    ) async throws {
        let random = "app-\(String(UInt64.random(in: 0...(.max)), radix: 36))"
        let access: AccessID = try .argument(device?.rawValue ?? access ?? random, "--access")
        let configuration = try await connection.client(
            role: device == nil ? .app : .device, access: access, device: device)
        let online = Online()
        let link = try CommandSession(configuration, log: connection.log) { state, _ in
            if state == .online { online.isReached.store(true, ordering: .relaxed) }
        }
        link.session.start()
        let result = await link.ending.race(seconds: seconds) { () throws(ApusError) in
            try await online.wait()
            try await work(link.session)
        }
        try await link.close()
        try result.get()
    }
}

/// Whether a session has been online.
private final class Online: Sendable {
    let isReached = Atomic(false)

    /// Waits for ten seconds at most. Throws 21022.
    func wait() async throws(ApusError) {
        for _ in 0..<500 where !isReached.load(ordering: .relaxed) {
            guard (try? await Task.sleep(for: .milliseconds(20))) != nil else { throw ApusError(.cancelled) }
        }
        guard isReached.load(ordering: .relaxed) else {
            throw ApusError(.connectFailed, "no node of the cluster can be reached")
        }
    }
}
