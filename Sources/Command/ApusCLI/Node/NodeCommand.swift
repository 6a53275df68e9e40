import ApusCore
import ApusHTTP
import ApusNode
import ApusNodeConfiguration
import ArgumentParser
import CApusThreads
import CoreMetrics
import Foundation
import Logging

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// `apus node`: runs one node of a cluster in the foreground, until SIGTERM or SIGINT.
struct NodeCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(commandName: "node", abstract: "Run one node of a cluster.")

    @Option(help: "Read this YAML configuration. cluster-configs/one-node.yaml describes every key.")
    var config: String

    func run() async throws {
        // If SWIFT_BACKTRACE is set, the operator wants the runtime's own report, which is made after the sockets are
        // shut.
        apus_crash_install(getenv("SWIFT_BACKTRACE") == nil ? 0 : 1)
        let configuration = try NodeConfiguration(file: config)
        let metrics = PrometheusMetrics(catalogue: ProgramServices.metricsByName)
        MetricsSystem.bootstrap(metrics)
        LoggingSystem.bootstrap { EscapingLogHandler(StreamLogHandler.standardError(label: $0)) }
        var log = Logger(label: "apus")
        log.logLevel = Logger.Level(rawValue: configuration.logLevel) ?? .info
        do {
            if RestartInPlace.isOne {
                log.notice("The node restarts because its incarnation was declared dead, or was another process's")
                await RestartInPlace.waitForPorts(of: configuration)
            }
            try await NodeServer(configuration: configuration, metrics: metrics, log: log).run(
                reload: { () throws(ApusError) in try NodeConfiguration(file: config) },
                fenced: RestartInPlace.start)
        } catch let error as ApusError where error.code == .fenced {
            log.warning("Another process of this node joined first", metadata: Logger.facts(of: error))
            RestartInPlace.start()
        } catch let error as ApusError {
            log.error("The node stops because of an error", metadata: Logger.facts(of: error))
            throw error
        }
    }
}
