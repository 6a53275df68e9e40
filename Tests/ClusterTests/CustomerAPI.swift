import ApusCore
import Foundation
import Testing

/// REST requests to any node, with any token, such as those of an integrator's server.
struct CustomerAPI {
    let cluster: Cluster

    /// - Parameters:
    ///   - id: the header `Idempotency-Key`.
    ///   - status: the one that the answer must have; nil: any.
    @discardableResult
    func ask(
        _ method: String, _ path: String, _ token: String, _ body: String? = nil, node: Int = 1, id: String? = nil,
        status: Int? = 200
    ) throws -> [String: Any] {
        let connection = try #require(PlainHTTP(port: cluster.httpPort(node)))
        let answer = try #require(connection.exchange(method, path, token: token, id: id, body: body))
        if let status { #expect(answer.status == status, "\(method) \(path): \(answer.status) \(answer.body)") }
        return (try? JSONSerialization.jsonObject(with: Data(answer.body.utf8)) as? [String: Any]) ?? [:]
    }

    func text(
        _ field: String, _ method: String, _ path: String, _ token: String, _ body: String? = nil, node: Int = 1
    ) throws -> String {
        try #require(try ask(method, path, token, body, node: node)[field] as? String)
    }

    /// Expects a refusal with this number, and these words.
    func fails(
        _ code: ErrorCode, _ method: String, _ path: String, _ token: String, _ body: String? = nil, node: Int = 1,
        saying words: String = ""
    ) throws {
        let answer = try ask(method, path, token, body, node: node, status: nil)
        let detail = answer["detail"] as? String ?? ""
        #expect(
            answer["code"] as? Int == Int(code.number) && (words.isEmpty || detail.contains(words)),
            "\(method) \(path): \(answer)")
    }

    func key(_ customer: String, _ admin: String) throws -> (key: String, id: String) {
        let answer = try ask("POST", "/v1/customers/\(customer)/keys", admin, "{}")
        return (try #require(answer["key"] as? String), try #require(answer["id"] as? String))
    }
}
