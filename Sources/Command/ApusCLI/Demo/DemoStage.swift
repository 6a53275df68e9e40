import ApusContract
import ApusCore
import ApusLocal
import Foundation
import Synchronization

/// The camera and the viewers of a demo: separate processes, with frame logs to compare.
final class DemoStage: Sendable {
    static let camera = "camera"

    let cluster: LocalCluster
    let viewerCount: Int
    private let source: [String]
    private let checked = Mutex(false)

    /// True once the check has completed without a fault.
    var isChecked: Bool { checked.withLock { $0 } }
    func markChecked() { checked.withLock { $0 = true } }

    /// - Parameter source: the options of `apus device` that select what to publish.
    init(cluster: LocalCluster, source: [String], viewerCount: Int) {
        self.cluster = cluster
        self.source = source
        self.viewerCount = viewerCount
    }

    /// The camera's and the viewers' names.
    static func clientNames(viewers: Int) -> [String] { [camera] + (1...viewers).map { "viewer-\($0)" } }

    var viewerNames: [String] { Array(Self.clientNames(viewers: viewerCount).dropFirst()) }
    func frameLog(_ name: String) -> String { "\(cluster.directory.path)/\(name)/frames.jsonl" }

    /// The node to which a client connects first: the first node for the camera, the others in turn for viewers.
    func endpoint(_ name: String) -> StateDirectory.Node {
        let nodes = cluster.mark.nodes
        guard let number = Int(name.split(separator: "-").last ?? ""), nodes.count > 1 else { return nodes[0] }
        return nodes[1 + (number - 1) % (nodes.count - 1)]
    }

    /// Starts the camera, and the viewers once its channel exists.
    /// - Throws: 10005 if the camera's frames do not reach the cluster; otherwise as ``NodeProcess/start()``.
    func start() async throws {
        try start([Self.camera])
        let deadline = ContinuousClock.now + .seconds(30)
        while channel(in: await NodeStanding.gather(cluster))?.channel.fed != true {
            try requireClients([Self.camera])
            guard ContinuousClock.now < deadline else {
                throw ApusError(.deadlineExceeded, "the camera's frames did not reach the cluster within 30 s")
            }
            try await Task.sleep(for: .milliseconds(100))
        }
        try start(viewerNames)
    }

    private func start(_ names: [String]) throws(ApusError) {
        for name in names {
            let directory = cluster.directory.path
            let common = ["--dir", directory, "--node", endpoint(name).name, "--log", frameLog(name)]
            let verb = name == Self.camera ? ["device", "--id", Self.camera] + source : ["watch", Self.camera]
            let folder = "\(directory)/\(name)"
            let process = NodeProcess(
                name: name, arguments: verb + common, logFile: "\(folder)/log", pidFile: "\(folder)/pid")
            try process.start()
            do {
                let arguments = try JSONEncoder().encode(process.arguments)
                try arguments.write(to: URL(fileURLWithPath: "\(folder)/arguments.json"), options: .atomic)
            } catch {
                throw ApusError(.storageFailed, "\(folder) cannot be written: \(error.localizedDescription)")
            }
        }
    }

    /// The process of a client with the arguments of its start. If it was not started, it counts as stopped.
    static func process(_ name: String, in state: StateDirectory) -> NodeProcess {
        let folder = "\(state.path)/\(name)"
        let data = FileManager.default.contents(atPath: "\(folder)/arguments.json") ?? Data()
        let arguments = (try? JSONDecoder().decode([String].self, from: data)) ?? []
        return NodeProcess(name: name, arguments: arguments, logFile: "\(folder)/log", pidFile: "\(folder)/pid")
    }

    func process(_ name: String) -> NodeProcess { Self.process(name, in: cluster.directory) }

    /// Fails if the camera or a viewer has ended.
    ///
    /// - Throws: 10018 with the end of its log.
    func requireClients(_ names: [String]? = nil) throws(ApusError) {
        for name in names ?? [Self.camera] + viewerNames {
            let process = process(name)
            guard process.pid == nil else { continue }
            let tail = process.logTail(lines: 10).map { "    \($0)" }.joined(separator: "\n")
            throw ApusError(.internalFailure, "\(name) ended; the end of its log \(process.logFile):\n\(tail)")
        }
    }

    /// The channel as its primary reports it; nil if no node reports that it is the primary.
    func channel(in reports: [NodeStanding]) -> (node: String, channel: NodeStatus.Channel)? {
        for report in reports {
            for channel in report.status.channels
            where channel.role == "primary" && channel.channel.hasPrefix("\(Self.camera)/") {
                return (report.status.name, channel)
            }
        }
        return nil
    }
}
