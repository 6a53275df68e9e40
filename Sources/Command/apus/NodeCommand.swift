import ApusCore
import ApusNode
import ArgumentParser
import CoreMetrics
import Foundation
import Logging

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus node`: one node of a cluster, in the foreground, until SIGTERM or SIGINT.
struct NodeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "node", abstract: "Run one node of a cluster.")

    @Option(help: "The node's configuration, YAML; cluster-configs/one-node.yaml names every key.")
    var config: String

    func run() async throws {
        let configuration = try NodeConfiguration(file: config)
        let metrics = PrometheusMetrics()
        MetricsSystem.bootstrap(metrics)
        LoggingSystem.bootstrap { StreamLogHandler.standardError(label: $0) }
        var log = Logger(label: "apus")
        log.logLevel = Logger.Level(rawValue: configuration.logLevel) ?? .info
        do {
            try await NodeServer(configuration: configuration, metrics: metrics, log: log).run(fenced: Self.startAnew)
        } catch let error as ApusError {
            log.error("The node cannot go on.", metadata: Logger.facts(of: error))
            throw error
        }
    }

    /// Becomes the same program anew: a life that was declared dead keeps nothing (D4).
    @Sendable private static func startAnew() {
        // Sockets and files of the old life close with it; only standard input, output and error stay.
        OpenFiles.closeOnExecution()
        // SAFETY: the copies are left to the system, which drops this program's memory.
        var arguments: [UnsafeMutablePointer<CChar>?] = CommandLine.arguments.map { strdup($0) } + [nil]
        execv("/proc/self/exe", &arguments)
        // Only reached where the program's file is gone: whoever supervises the node starts it.
        _exit(70)
    }
}
