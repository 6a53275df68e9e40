import ApusCore
import ApusLocal
import ApusNodeConfiguration
import ApusRelayNode
import ApusRelayService
import ApusSessions
import ArgumentParser
import Foundation

/// Selects the relays of an operator's command: those of a local cluster, or a standalone one.
struct RelayOperatorOptions: ParsableArguments {
    @Option(
        name: .customLong("dir"), help: "Use a local cluster's state directory. The default without --config.")
    var directory: String?

    @Option(help: "Read the configuration of a standalone relay on this machine.")
    var config: String?

    @Option(help: "Connect to a node's HTTP listener at HOST:PORT. It needs an operator's token.")
    var server: String?

    @Option(help: "Read the token for --server from this file; - prompts for it. Default: APUS_ADMIN_TOKEN.")
    var tokenFile: String?

    func validate() throws {
        guard [directory, config, server].compactMap({ $0 }).count <= 1 else {
            throw ValidationError("use one of --dir, --config and --server")
        }
        guard tokenFile == nil || server != nil else { throw ValidationError("--token-file needs --server") }
    }

    /// - Throws: 10021, 10022 if files are not valid, 21025 if the relay has no HTTP listener.
    func relays() async throws -> [RelayOperator] {
        if let config { return [try RelayOperator(configuration: config)] }
        if let server {
            guard let address = HostPort(server) else { throw ValidationError("\(server) is not HOST:PORT") }
            guard
                let token = try SecretText.given(nil, file: tokenFile, variable: "APUS_ADMIN_TOKEN", name: "token")
            else { throw ValidationError("an operator's token is expected: --token-file, or APUS_ADMIN_TOKEN") }
            return [RelayOperator(name: server, address: address, token: token)]
        }
        let local = try LocalCluster(directory: directory ?? StateDirectory.defaultPath)
        let token = try await local.mint(role: .admin, access: AccessID(unchecked: "operator"))
        return local.mark.nodes.filter { $0.relay != nil }.compactMap { node in
            HostPort(node.http).map { RelayOperator(name: "\(node.name)", address: $0, token: token) }
        }
    }
}

/// One relay, with its HTTP listener and an operator's token.
struct RelayOperator: Sendable {
    private static let timeout = Duration.seconds(5)

    let name: String
    let address: HostPort
    let token: String

    init(name: String, address: HostPort, token: String) {
        self.name = name
        self.address = address
        self.token = token
    }

    /// The relay of a `relay-only` configuration, on this machine.
    /// - Throws: 10021, 10022 if files are not valid, 21025 if it has no HTTP listener.
    init(configuration file: String) throws(ApusError) {
        let node = try RelayNodeConfiguration(file: file)
        guard let http = node.http else {
            throw ApusError(.unavailable, "the relay of \(file) has no HTTP listener: set `http`")
        }
        self.init(name: "relay", address: http, token: try node.relayOperatorToken())
    }

    /// - Throws: 21022, 10005 if it does not answer, 21025 with its message if it refuses.
    func ask<Answer: Decodable>(_ method: String, _ path: String, as type: Answer.Type) async throws -> Answer {
        let answer = try await NodeHTTP.send(method, path, to: address, token: token, timeout: Self.timeout)
        guard (200...299).contains(answer.status) else {
            throw ApusError(.unavailable, "\(name) refused (\(answer.status)): \(answer.text)")
        }
        guard let value = try? JSONDecoder().decode(type, from: Data(answer.body)) else {
            throw ApusError(.malformed, "\(name) did not answer as a relay")
        }
        return value
    }

    /// The query of a selection; empty for all.
    static func query(user: String?, id: UInt32?) -> String {
        if let id { return "?id=\(id)" }
        guard let user else { return "" }
        return "?user=\(user.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? "")"
    }
}
