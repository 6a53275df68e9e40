import ArgumentParser
import HTTPTypes
import Hummingbird
import Logging
import NIOCore

/// `apus-bench bare-http`: a Hummingbird route that answers with a constant text, as a floor for REST.
struct BenchBareHTTPCommand: AsyncParsableCommand {
    static let configuration = CommandConfiguration(
        commandName: "bare-http", abstract: "Serve a constant text over HTTP.", shouldDisplay: false)

    @Option(help: "The port.") var port: Int

    func run() async throws {
        let router = Router()
        let text = #"{"device":"bench-0","online":1,"time":"1795456536"}"#
        router.get("v1/devices/:device/presence") { _, _ in
            Response(
                status: .ok, headers: [.contentType: "application/json"],
                body: ResponseBody(byteBuffer: ByteBuffer(string: text)))
        }
        var log = Logger(label: "bare")
        log.logLevel = .error
        try await Application(
            router: router, configuration: .init(address: .hostname("127.0.0.1", port: port)), logger: log
        ).runService()
    }
}
