// Products and their schemas (IV-D1 to IV-D5, docs/things.md).

extension ClientPutProductRequest: ClientRequestMessage {
    public typealias Reply = ClientProduct
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            120, "products.put", .put("/v1/customers/{customer}/products/{product}"), roles: [.customer, .admin],
            isAudited: true,
            fields: [
                "customer": .identifier, "product": .identifier, "schema": .jsonSchema,
                "if_revision": FieldRule(pattern: "^(0|[1-9][0-9]{0,18})$"),
            ],
            "Create a product, or replace its schema. The same schema again has no effect.")
    }
}

extension ClientGetProductRequest: ClientRequestMessage {
    public typealias Reply = ClientProduct
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            121, "products.get", .get("/v1/customers/{customer}/products/{product}"), roles: [.customer, .admin],
            fields: ["customer": .identifier, "product": .identifier], "Get a product with its schema.")
    }
}

extension ClientListProductsRequest: ClientRequestMessage {
    public typealias Reply = ClientListProductsResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            122, "products.list", .get("/v1/customers/{customer}/products"), roles: [.customer, .admin],
            fields: ["customer": .identifier, "page_token": .optionalIdentifier],
            "List the products of an integrator, without their schemas.")
    }
}

extension ClientDeleteProductRequest: ClientRequestMessage {
    public typealias Reply = ClientDeleteProductResponse
    public static var info: ClientRequestInfo {
        ClientRequestInfo(
            123, "products.delete", .delete("/v1/customers/{customer}/products/{product}"),
            roles: [.customer, .admin], isIdempotent: false, isAudited: true,
            fields: ["customer": .identifier, "product": .identifier],
            "Delete a product. Models of its devices are checked no more.")
    }
}
