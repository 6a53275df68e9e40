// The requests about the thing models of devices (IV-D1 to IV-D10, docs/things.md).

extension ClientReadPropertyRequest: ClientRequestMessage {
    public typealias Reply = ClientProperty
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            50, "properties.read", .get("/v1/devices/{device}/properties"), roles: [.device, .app],
            isForNamedDevices: true,
            fields: ["device": .identifier, "path": .path],
            "Read a part of a device's model, or the whole model, also while the device is offline.")
    }
}

extension ClientWritePropertyRequest: ClientRequestMessage {
    public typealias Reply = ClientWritePropertyResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            51, "properties.write", .post("/v1/devices/{device}/properties"), roles: .app, isIdempotent: false,
            isForNamedDevices: true,
            fields: ["device": .identifier, "path": .path, "json": .json, "if_version": .version],
            "Write a setting of a device or a user property. The device receives a setting when it is connected.")
    }
}

extension ClientAddUserPropertyRequest: ClientRequestMessage {
    public typealias Reply = ClientWritePropertyResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            52, "properties.add", .post("/v1/devices/{device}/user-properties/{name}"), roles: .app,
            isIdempotent: false, isForNamedDevices: true,
            fields: ["device": .identifier, "name": .propertyName, "json": .json],
            "Add a user property to a device's model, or replace it.")
    }
}

extension ClientDeleteUserPropertyRequest: ClientRequestMessage {
    public typealias Reply = ClientWritePropertyResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            53, "properties.delete", .delete("/v1/devices/{device}/user-properties/{name}"), roles: .app,
            isIdempotent: false, isForNamedDevices: true, fields: ["device": .identifier, "name": .propertyName],
            "Delete a user property of a device's model.")
    }
}

extension ClientReportPropertyRequest: ClientRequestMessage {
    public typealias Reply = ClientWritePropertyResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            54, "properties.report", .post("/v1/properties"), roles: .device, isIdempotent: false,
            fields: ["path": .path, "json": .json, "received_version": .version],
            "Report a state, the value of a setting, or an action of this device.")
    }
}

extension ClientListPendingPropertiesRequest: ClientRequestMessage {
    public typealias Reply = ClientListPendingPropertiesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            55, "properties.pending", .get("/v1/properties/pending"), roles: .device,
            "List the settings whose values this device has not reported yet.")
    }
}

extension ClientPropertyChanged: ClientEventMessage {
    public static var info: ClientEventInfo {
        ClientEventInfo(2, "property", "A leaf of a device's model changed.")
    }
}

extension FieldRule {
    /// A path into a model.
    fileprivate static let path = Self(pattern: "^[^\\x00-\\x1f]{0,512}$")
    /// A name of a user property.
    fileprivate static let propertyName = Self(pattern: "^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$", isRequired: true)
    fileprivate static let version = Self(pattern: "^(0|[1-9][0-9]{0,18})$")
}
