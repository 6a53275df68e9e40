/// The messages between clients and a node. The numbers are those of `proto/apus/client.proto`.
public enum ClientMethod: UInt16, Sendable, CaseIterable {
    case publish = 1
    case unpublish = 2
    case play = 3
    case stop = 4
    case subscribe = 5
    case unsubscribe = 6
    case sleep = 7
    case relayCredentials = 8
    case presence = 101
    case publishAck = 102
    case publishResume = 103
    case streamState = 104
    case doorsChanged = 105
}
