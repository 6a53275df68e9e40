/// Servers for NAT traversal as browsers take them (`RTCConfiguration`, W3C WebRTC §4.2.1): what
/// `/v1/relay/credentials` answers and `apus relay credentials` prints.
public struct IceServers: Codable, Sendable, Equatable {
    /// Addresses that take the same name and password.
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
