package import ApusCore
import Foundation
package import NIOCore
import NIOFoundationCompat
package import NIOHTTP1

extension HTTPFetch {
    /// Errors after which the same request is sent again: nobody answers for the shard, nobody knows the outcome, or
    /// the store of the records fails.
    private static let passingCodes: Set<Int> = [
        10_005, 10_007, 10_008, 10_009, 10_010, 10_012, 10_013, 10_017, 10_021, 21_002,
    ]
    private static let repetitionPause = Duration.milliseconds(5)

    private struct Problem: Decodable {
        var code: Int?
    }

    /// Sends a request to the nodes in turn until one of them carries it out or refuses it, as a careful app does.
    ///
    /// - Parameters:
    ///   - nodes: the addresses of their HTTP listeners; at least one.
    ///   - first: the number of the node that is asked first, modulo the number of nodes.
    ///   - key: as ``send(_:_:to:token:key:body:tls:timeout:)``; needed for a request that changes something.
    ///   - attemptTimeout: the time-out of one attempt.
    ///   - timeout: how long the request is repeated.
    /// - Returns: the answer; nil if nobody knows whether the request was carried out.
    package static func sendRepeatedly(
        _ method: HTTPMethod, _ path: String, to nodes: [HostPort], first: Int, token: String, key: String? = nil,
        body: ByteBuffer? = nil, attemptTimeout: Duration, timeout: Duration
    ) async -> Answer? {
        let deadline = MonotonicTime.now() + timeout
        var turn = first
        while MonotonicTime.now() < deadline {
            let answer = try? await send(
                method, path, to: nodes[turn % nodes.count], token: token, key: key, body: body, timeout: attemptTimeout
            )
            if let answer {
                let problem = try? JSONDecoder().decode(Problem.self, from: Data(buffer: answer.body))
                if answer.status == 200 || !passingCodes.contains(problem?.code ?? 0) { return answer }
            }
            turn += 1
            try? await Task.sleep(for: repetitionPause)
        }
        return nil
    }
}
