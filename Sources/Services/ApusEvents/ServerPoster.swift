package import ApusCore

/// A request to a server of an integrator.
package struct ServerPost: Sendable, Hashable {
    /// The same for each repetition.
    package var id: String
    package var url: String
    /// JSON.
    package var body: [UInt8]
    /// The request has a signature with each.
    package var secrets: [[UInt8]]
    package var timeout: Duration
    /// The longest answer; nil: the answer is not read.
    package var answerByteCountMax: Int?

    package init(
        id: String, url: String, body: [UInt8], secrets: [[UInt8]], timeout: Duration, answerByteCountMax: Int?
    ) {
        (self.id, self.url, self.body, self.secrets) = (id, url, body, secrets)
        (self.timeout, self.answerByteCountMax) = (timeout, answerByteCountMax)
    }
}

/// What sends requests to servers: the port that the node connects to its HTTP client.
///
/// Isolation: may be called from anywhere.
package protocol ServerPoster: Sendable {
    /// Sends a request once.
    ///
    /// - Returns: the body of an answer with a status of 2xx.
    /// - Throws: 21002 after the time-out, 21005 if the server cannot be reached, refuses the request, or answers more
    ///   than was asked for.
    func post(_ post: ServerPost) async throws(ApusError) -> [UInt8]
}

/// A message for a server that a service of the nodes takes itself.
package struct ServerMessage: Sendable {
    /// What follows the name of the handler and a slash; may be empty.
    package var path: String
    package var data: [UInt8]
    package var account: AccountID
    package var access: AccessID
    /// Nil for an app.
    package var device: DeviceID?
}

/// Takes raw data of apps and devices, and answers (IV-D12). An error with another number than 21005 reaches the client
/// as it is.
package typealias ServerHandler = @Sendable (ServerMessage) async throws(ApusError) -> [UInt8]
