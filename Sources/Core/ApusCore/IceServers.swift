/// Servers for NAT traversal in the form that browsers accept (`RTCConfiguration`, W3C WebRTC §4.2.1).
/// `/v1/relay/credentials` and `apus relay credentials` return it.
public struct IceServers: Codable, Sendable, Equatable {
    /// Addresses with a common name and password.
    public struct Server: Codable, Sendable, Equatable {
        /// RFC 7065, such as `turn:relay.example:3478?transport=udp`.
        public var urls: [String]
        public var username: String
        public var credential: String

        public init(urls: [String], username: String, credential: String) {
            self.urls = urls
            self.username = username
            self.credential = credential
        }
    }

    public var iceServers: [Server]

    public init(_ servers: [Server]) { iceServers = servers }
}
