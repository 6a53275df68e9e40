import ApusClient
import ApusCluster
import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import Foundation
import Logging
import NIOCore
import NIOPosix

/// A local cluster of one binary, with clients that sign in.
/// Isolation: used by the benchmark's one task. Clients have their own event loops.
struct SignInStage {
    let local: LocalCluster
    private let executable: String
    /// The event loops of the clients.
    private(set) var group: MultiThreadedEventLoopGroup
    private let log: Logger

    /// Starts the cluster. Throws 10018 if it does not start.
    init(
        executable: String, nodes: Int, directory: String, basePort: Int, group: MultiThreadedEventLoopGroup
    ) throws {
        self.executable = executable
        self.group = group
        var log = Logger(label: "bench") { StreamLogHandler.standardError(label: $0) }
        log.logLevel = .error
        self.log = log
        do {
            try FailoverStage.run(
                executable,
                ["cluster", "up", "--nodes", "\(nodes)", "--dir", directory, "--base-port", "\(basePort)"])
        } catch {
            try? FailoverStage.run(executable, ["cluster", "down", "--dir", directory])
            throw error
        }
        local = try LocalCluster(directory: directory)
    }

    /// The same cluster, for clients with other event loops.
    func with(_ group: MultiThreadedEventLoopGroup) -> Self {
        var stage = self
        stage.group = group
        return stage
    }

    func down() {
        try? FailoverStage.run(executable, ["cluster", "down", "--dir", local.directory.path])
        try? FileManager.default.removeItem(atPath: local.directory.path)
    }

    /// The CPU time of a node's process, in seconds.
    func busySeconds(of node: String) throws(ApusError) -> Double {
        guard let pid = NodeProcess(node, in: local.directory).pid else {
            throw ApusError(.internalFailure, "the node \(node) is not running")
        }
        return try BenchProcess.busySeconds(of: pid)
    }

    func kill(_ node: String) throws(ApusError) {
        guard NodeProcess(node, in: local.directory).signal(SIGKILL) else {
            throw ApusError(.internalFailure, "the node \(node) is not running")
        }
    }

    /// Starts the nodes that are not running.
    func restart() throws {
        try FailoverStage.run(executable, ["cluster", "up", "--dir", local.directory.path])
    }

    // MARK: Clients

    func probe(_ number: Int, resumes: Bool) async throws(ApusError) -> SignInProbe {
        let access = AccessID(unchecked: "probe-\(number)")
        return try SignInProbe(
            configuration: try await configuration(.app, access, device: nil, first: local.mark.nodes[0].name),
            resumes: resumes, eventLoop: group.next())
    }

    func publisher(_ device: DeviceID, at node: String) async throws(ApusError) -> BenchPublisher {
        let access = AccessID(unchecked: device.rawValue)
        let session = try await session(.device, access, device: device, first: node)
        return BenchPublisher(
            device: device, session: session, frames: BenchFrames(keyByteCount: 4_000, byteCount: 1_000),
            end: ClientEnd())
    }

    /// Starts cameras, spread over nodes, and waits until they have sent something.
    func startCameras(_ count: Int, at nodes: [String]) async throws -> FailoverCast {
        let cast = FailoverCast()
        for index in 0..<count {
            cast.publishers.append(
                try await publisher(DeviceID(unchecked: "camera-\(index)"), at: nodes[index % nodes.count]))
        }
        for publisher in cast.publishers { publisher.start() }
        try await Task.sleep(for: .milliseconds(500))
        return cast
    }

    func viewer(_ device: DeviceID, _ number: Int, at node: String) async throws(ApusError) -> BenchViewer {
        let access = AccessID(unchecked: "viewer-\(number)")
        return BenchViewer(
            device: device, session: try await session(.app, access, device: nil, first: node), end: ClientEnd(),
            checksContent: true)
    }

    func session(
        _ role: Session.Role, _ access: AccessID, account: AccountID = LocalCluster.account, device: DeviceID?,
        first node: String, onLinkState: @escaping @Sendable (LinkState, ApusError?) -> Void = { _, _ in }
    ) async throws(ApusError) -> ClientSession {
        let session = try ClientSession(
            configuration: try await configuration(role, access, account: account, device: device, first: node),
            eventLoop: group.next(), log: log, onLinkState: onLinkState)
        session.start()
        return session
    }

    private func configuration(
        _ role: Session.Role, _ access: AccessID, account: AccountID = LocalCluster.account, device: DeviceID?,
        first node: String
    ) async throws(ApusError) -> ClientConfiguration {
        let first = try local.endpoint(of: node)
        return ClientConfiguration(
            endpoints: [first] + local.endpoints.filter { $0 != first }, authorityFile: local.authorityFile,
            token: try await local.mint(role: role, access: access, account: account, device: device),
            role: role == .device ? .device : .app)
    }
}
