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
    /// An operator has set the URL: it may lead to any address.
    package var isForOperators: Bool

    package init(
        id: String, url: String, body: [UInt8], secrets: [[UInt8]], timeout: Duration, answerByteCountMax: Int?,
        isForOperators: Bool
    ) {
        (self.id, self.url, self.body, self.secrets) = (id, url, body, secrets)
        (self.timeout, self.answerByteCountMax) = (timeout, answerByteCountMax)
        self.isForOperators = isForOperators
    }
}

/// The answer of a server.
package struct ServerAnswer: Sendable, Hashable {
    package var status: Int
    /// Empty unless the status is 2xx.
    package var body: [UInt8]

    package init(status: Int, body: [UInt8]) { (self.status, self.body) = (status, body) }

    /// - Throws: 21005 for a status other than 2xx.
    package func checkTaken() throws(ApusError) {
        guard (200..<300).contains(status) else {
            throw ApusError(.passToServerFailed, "the server answered with the status \(status)")
        }
    }
}

/// What sends requests to servers: the port that the node connects to its HTTP client.
///
/// Isolation: may be called from anywhere.
package protocol ServerPoster: Sendable {
    /// Sends a request once. A name is resolved once, and each address is checked before it is connected to.
    ///
    /// - Throws: 21002 after the time-out, 21005 if the server cannot be reached or answers more than was asked for;
    ///   12004 if the URL leads only to addresses that it may not lead to.
    func post(_ post: ServerPost) async throws(ApusError) -> ServerAnswer
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
