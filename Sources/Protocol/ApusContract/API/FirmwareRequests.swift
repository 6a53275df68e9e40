// Firmware of devices (IV-E1, docs/firmware.md).

extension ClientCreateFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmware
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            130, "firmware.create", .post("/v1/customers/{customer}/firmware"), roles: [.customer, .admin],
            isAudited: true,
            fields: [
                "customer": .identifier, "manifest": .firmwareManifest, "signature": .signature,
                "url": FieldRule(pattern: "^(https://[!-~]{1,500})?$"),
                "descriptions": FieldRule(
                    itemCount: 0...16, itemsDiffer: true,
                    fields: ["language": FieldRule(pattern: "^[A-Za-z0-9-]{1,35}$", isRequired: true)]),
            ],
            "Add a version of a product's firmware by its signed manifest, or replace its descriptions.")
    }
}

extension ClientUploadFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientUploadFirmwareResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            131, "firmware.upload", .post("\(ClientFirmware.path)/chunks"), roles: [.customer, .admin],
            fields: ClientFirmware.rules, "Upload a chunk of an image. Chunks come in any order, and may come again.")
    }
}

extension ClientSealFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmware
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            132, "firmware.seal", .post("\(ClientFirmware.path)/seal"), roles: [.customer, .admin], isAudited: true,
            fields: ClientFirmware.rules, "Check an uploaded image against the hash of its manifest, and close it.")
    }
}

extension ClientRollOutFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmware
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            133, "firmware.roll-out", .post("\(ClientFirmware.path)/roll-out"), roles: [.customer, .admin],
            isIdempotent: false, isAudited: true,
            fields: ClientFirmware.rules.merging(
                [
                    "state": FieldRule(isRequired: true), "percentage": FieldRule(range: 0...100),
                    "stop_failure_percent": FieldRule(range: 0...100),
                    "stop_failures": FieldRule(range: 0...1_000_000_000),
                    "groups": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$", itemCount: 0...32, itemsDiffer: true),
                    "if_revision": FieldRule(pattern: "^(0|[1-9][0-9]{0,18})$"),
                ]
            ) { $1 },
            "Set which devices are offered a version: all, some, none, and when it stops by itself.")
    }
}

extension ClientGetFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmware
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            134, "firmware.get", .get(ClientFirmware.path), roles: [.customer, .admin], fields: ClientFirmware.rules,
            "Get a version with its manifest, its rule and its outcomes.")
    }
}

extension ClientListFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientListFirmwareResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            135, "firmware.list", .get("/v1/customers/{customer}/firmware"), roles: [.customer, .admin],
            fields: [
                "customer": .identifier, "product": .optionalIdentifier, "page_token": .optionalIdentifier,
            ],
            "List the versions and the groups of a product, or of all products.")
    }
}

extension ClientDeleteFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientDeleteFirmwareResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            136, "firmware.delete", .delete(ClientFirmware.path), roles: [.customer, .admin], isIdempotent: false,
            isAudited: true, fields: ClientFirmware.rules, "Delete a version with its image and its outcomes.")
    }
}

extension ClientSetFirmwareGroupRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmwareGroup
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            137, "firmware.group-set", .post(ClientFirmwareGroup.path), roles: [.customer, .admin], isAudited: true,
            fields: ClientFirmwareGroup.rules.merging(
                ["devices": FieldRule(pattern: "^[A-Za-z0-9._-]{1,63}$", itemCount: 0...1000)]
            ) { $1 },
            "Set the devices of a group, or add some to it.")
    }
}

extension ClientDeleteFirmwareGroupRequest: ClientRequestMessage {
    public typealias Reply = ClientDeleteFirmwareGroupResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            138, "firmware.group-delete", .delete(ClientFirmwareGroup.path), roles: [.customer, .admin],
            isIdempotent: false, isAudited: true, fields: ClientFirmwareGroup.rules, "Delete a group.")
    }
}

extension ClientGetFirmwareGroupRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmwareGroup
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            139, "firmware.group-get", .get(ClientFirmwareGroup.path), roles: [.customer, .admin],
            fields: ClientFirmwareGroup.rules, "Get the devices of a group.")
    }
}

extension ClientListFirmwareOutcomesRequest: ClientRequestMessage {
    public typealias Reply = ClientListFirmwareOutcomesResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            143, "firmware.outcomes", .get("\(ClientFirmware.path)/outcomes"), roles: [.customer, .admin],
            fields: ClientFirmware.rules.merging(["page_token": .optionalIdentifier]) { $1 },
            "List the devices that have installed a version, or have failed to, and why.")
    }
}

extension ClientQueryFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmwareOffer
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            140, "firmware.query", .get("/v1/devices/{device}/firmware"), roles: [.device, .app, .customer, .admin],
            isForNamedDevices: true,
            fields: [
                "device": .identifier, "current_version": FieldRule(pattern: "^(\(FirmwareVersion.pattern))?$"),
                "language": FieldRule(pattern: "^[A-Za-z0-9-]{0,35}$"),
            ],
            "Query the new firmware of a device, also while the device is offline.")
    }
}

extension ClientReadFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientFirmwarePart
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            141, "firmware.read", .get("/v1/devices/{device}/firmware/{version}/bytes"), roles: .device,
            fields: [
                "device": .identifier, "version": .version, "offset": FieldRule(pattern: "^(0|[1-9][0-9]{0,11})$"),
            ],
            "Read a part of an image of this device's firmware.")
    }
}

extension ClientReportFirmwareRequest: ClientRequestMessage {
    public typealias Reply = ClientReportFirmwareResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            142, "firmware.report", .post("/v1/devices/{device}/firmware/{version}/outcome"), roles: .device,
            fields: ["device": .identifier, "version": .version],
            "Report that this device has installed a version, or has failed to.")
    }
}

extension ClientFirmware {
    fileprivate static let path = "/v1/customers/{customer}/products/{product}/firmware/{version}"
    fileprivate static let rules: [String: FieldRule] = [
        "customer": .identifier, "product": .identifier, "version": .version,
    ]
}

extension ClientFirmwareGroup {
    fileprivate static let path = "/v1/customers/{customer}/products/{product}/groups/{group}"
    fileprivate static let rules: [String: FieldRule] = [
        "customer": .identifier, "product": .identifier, "group": .identifier,
    ]
}

extension FieldRule {
    fileprivate static let version = Self(pattern: "^\(FirmwareVersion.pattern)$", isRequired: true)
}
