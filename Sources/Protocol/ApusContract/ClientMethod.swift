/// The frames between clients and a node that are the native protocol's own; numbers as in `proto/apus/client.proto`.
/// All other requests are those of ``ClientRequestMessage``.
public enum ClientMethod: UInt16, Sendable, CaseIterable {
    case publish = 1
    case unpublish = 2
    case play = 3
    case stop = 4
    case event = 101
    case publishAck = 102
    case publishResume = 103
    case streamState = 104
    case endpointsChanged = 105
}
