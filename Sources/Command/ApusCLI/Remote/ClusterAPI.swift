import ApusContract
import ApusCore
import ApusLocal
import ApusSessions
import ApusTLS
import ArgumentParser
import Foundation
import SwiftProtobuf

/// The cluster that a verb is for: `apus --server URL --token-file FILE VERB`, or a local cluster.
struct ServerOptions: ParsableArguments {
    @Option(help: "Use the cluster with a node at this URL, such as https://node-1:8080.")
    var server: String?
    @Option(
        help: """
            Read the operator's token from this file; - prompts for it. Default: APUS_ADMIN_TOKEN, or a token of the \
            local cluster's own key.
            """)
    var tokenFile: String?
    @Option(help: "Trust the authority in this PEM file, instead of those of the system.")
    var ca: String?

    /// The arguments with the options before the verb, as in `apus --server URL status`, moved to the end.
    ///
    /// They are options of the verbs, not of `apus`, which would also take the options of the same names that other
    /// verbs have. Pure.
    static func behindVerb(_ arguments: [String]) -> [String] {
        let names = ["--server", "--token-file", "--ca"]
        var rest = arguments[...]
        var moved: [String] = []
        while let first = rest.first {
            if names.contains(first), rest.count > 1 {
                moved += rest.prefix(2)
                rest = rest.dropFirst(2)
            } else if names.contains(where: { first.hasPrefix("\($0)=") }) {
                moved.append(first)
                rest = rest.dropFirst()
            } else {
                break
            }
        }
        return rest.isEmpty ? arguments : rest + moved
    }

    /// A token that is given is the one that is used, with a local cluster as well.
    ///
    /// Throws 21031, 10022 and 10020 where the options make no sense, or there is no local cluster.
    func api(directory: String) async throws(ApusError) -> ClusterAPI {
        let token = try SecretText.given(nil, file: tokenFile, variable: "APUS_ADMIN_TOKEN", name: "token")?
            .trimmingCharacters(in: .whitespacesAndNewlines)
        guard let server else {
            guard ca == nil else { throw ApusError(.badParameter, "--ca needs --server") }
            return try await Self.local(directory, token: token)
        }
        guard let url = URLComponents(string: server), let host = url.host,
            let scheme = url.scheme, ["http", "https"].contains(scheme), ["", "/"].contains(url.path)
        else { throw ApusError(.badParameter, "--server must be http://HOST:PORT or https://HOST:PORT") }
        guard let token else {
            throw ApusError(.badParameter, "--server needs a token: --token-file, or APUS_ADMIN_TOKEN")
        }
        let isSecure = scheme == "https"
        return ClusterAPI(
            address: HostPort(host: host, port: url.port ?? (isSecure ? 443 : 80)),
            token: token, tls: isSecure ? try tls() : nil)
    }

    private func tls() throws(ApusError) -> NodeHTTP.TLS {
        // Says what is wrong with the file, and not only that the connection fails.
        if let ca { _ = try TLSClientContext(authorityFile: ca) }
        return try NodeHTTP.TLS(authorityFile: ca)
    }

    /// A node of the local cluster that answers.
    ///
    /// - Parameter token: nil: an operator's, of the cluster's own key.
    static func local(_ directory: String, token given: String? = nil) async throws(ApusError) -> ClusterAPI {
        let cluster = try LocalCluster(directory: directory)
        var token = given ?? ""
        if given == nil { token = try await cluster.mint(role: .admin, access: AccessID(unchecked: "operator")) }
        for node in cluster.mark.nodes {
            guard NodeProcess(node.name, in: cluster.directory).state == .running, let address = HostPort(node.http)
            else { continue }
            return ClusterAPI(address: address, token: token, tls: nil)
        }
        throw ApusError(.unavailable, "no node of the cluster in \(directory) runs")
    }
}

/// A cluster's REST API: any registered request, by its path (D17).
struct ClusterAPI: Sendable {
    private static let timeout = Duration.seconds(15)

    let address: HostPort
    let token: String
    /// Nil over plain HTTP.
    let tls: NodeHTTP.TLS?

    /// Sends a request and waits for the answer.
    ///
    /// - Throws: 21022 if the connection fails, 10005 after 15 s, 10001 if the answer cannot be read, or the error that
    ///   the cluster answered.
    func ask<M: ClientRequestMessage>(_ message: M) async throws(ApusError) -> M.Reply {
        guard let rule = M.info.path else { throw ApusError(.methodUnknown, "\(M.info.name) has no path") }
        let fields = try Self.fields(of: message)
        // The second path is for a request without a field of the first.
        let isWhole = rule.parts.allSatisfy { part in
            if case .field(let name) = part { !(fields[name] as? String ?? "").isEmpty } else { true }
        }
        let request = try Self.request(fields, isWhole ? rule : M.info.alias ?? rule, M.info.fields)
        let answer = try await NodeHTTP.send(
            rule.method.rawValue, request.path, to: address, token: token, body: request.body,
            tls: tls, timeout: Self.timeout)
        guard answer.status == 200 else { throw Self.error(answer) }
        do {
            // A newer cluster may say more than this program knows.
            var options = JSONDecodingOptions()
            options.ignoreUnknownFields = true
            return try M.Reply(jsonUTF8Bytes: answer.body, options: options)
        } catch {
            throw ApusError(.malformed, "the answer of \(address) cannot be read")
        }
    }

    private static func fields(of message: some Message) throws(ApusError) -> [String: Any] {
        guard let text = try? message.jsonUTF8Bytes() as [UInt8],
            let fields = try? JSONSerialization.jsonObject(with: Data(text)) as? [String: Any]
        else { throw ApusError(.internalFailure, "the request cannot be encoded") }
        return fields
    }

    private static func request(
        _ fields: [String: Any], _ rule: HTTPRule, _ rules: [String: FieldRule]
    ) throws(ApusError) -> (path: String, body: String?) {
        var (fields, path) = (fields, "")
        for part in rule.parts {
            switch part {
            case .literal(let literal): path += "/\(literal)"
            case .field(let name):
                // A number that is 0 is left out of a message.
                let zero = rules[name]?.range?.contains(0) ?? false ? "0" : nil
                let found = fields.removeValue(forKey: name)
                guard let value = found as? String ?? (found as? NSNumber)?.stringValue ?? zero else {
                    throw ApusError(.badParameter, "\(name) is missing")
                }
                path += "/" + escaped(value)
            }
        }
        guard !rule.method.takesBody else {
            guard !fields.isEmpty, let body = try? JSONSerialization.data(withJSONObject: fields) else {
                return (path, nil)
            }
            return (path, String(decoding: body, as: UTF8.self))
        }
        guard let json = try? JSONSerialization.data(withJSONObject: fields),
            let values = try? JSONDecoder().decode([String: QueryValue].self, from: json)
        else { throw ApusError(.internalFailure, "the request cannot be encoded") }
        let query = values.sorted { $0.key < $1.key }.flatMap { name, value in
            value.texts.map { "\(name)=\(escaped($0))" }
        }
        return (path + (query.isEmpty ? "" : "?" + query.joined(separator: "&")), nil)
    }

    /// A field of a request, as texts of a query. Foundation's own values do not tell `true` from 1.
    private struct QueryValue: Decodable {
        let texts: [String]

        init(from decoder: any Swift.Decoder) throws {
            if let values = try? [QueryValue](from: decoder) {
                texts = values.flatMap(\.texts)
            } else if let flag = try? Bool(from: decoder) {
                texts = ["\(flag)"]
            } else if let number = try? Int64(from: decoder) {
                texts = ["\(number)"]
            } else {
                texts = [try String(from: decoder)]
            }
        }
    }

    private static func escaped(_ text: String) -> String {
        let plain = CharacterSet.alphanumerics.union(CharacterSet(charactersIn: "-._~"))
        return text.addingPercentEncoding(withAllowedCharacters: plain) ?? text
    }

    /// The bytes that are loaded at once.
    private static let pieceByteCount = 8 << 20

    /// Loads a file of an address, piece by piece.
    ///
    /// - Parameter write: takes the pieces in their order.
    /// - Returns: the size of the file.
    /// - Throws: as ``ask(_:)``; 10030 if the file is another one meanwhile.
    func load(
        _ path: String, write: (_ piece: [UInt8]) throws(ApusError) -> Void
    ) async throws(ApusError) -> Int {
        var (place, tag) = (0, String?.none)
        while true {
            let answer = try await NodeHTTP.send(
                "GET", path, to: address, range: place..<place + Self.pieceByteCount, tag: tag, tls: tls,
                timeout: .seconds(60))
            guard answer.status == 206 else {
                guard answer.status == 200 else { throw Self.error(answer) }
                throw ApusError(.versionConflict, "the recordings have changed meanwhile")
            }
            guard let size = answer.fileByteCount, !answer.body.isEmpty else {
                throw ApusError(.malformed, "the answer of \(address) has no range")
            }
            try write(answer.body)
            place += answer.body.count
            tag = answer.tag
            if place >= size { return place }
        }
    }

    /// The error of a problem document (RFC 9457).
    private static func error(_ answer: NodeHTTP.Answer) -> ApusError {
        struct Problem: Decodable {
            var code: Int32
            var detail: String?
        }
        guard let problem = try? JSONDecoder().decode(Problem.self, from: Data(answer.body)) else {
            return ApusError(.malformed, "the answer has the status \(answer.status)")
        }
        return ApusError(ErrorCode(number: problem.code), problem.detail ?? "the cluster refused")
    }
}
