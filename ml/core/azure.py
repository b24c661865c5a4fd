"""Constants of Azure and GitHub: role ids, the token issuer, placeholders of a new repository."""

from __future__ import annotations

from collections.abc import Mapping

# Issuer and audience of the OIDC tokens of GitHub workflows, which Azure exchanges for its own.
ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "api://AzureADTokenExchange"
# Placeholders for a subscription or tenant id, the repository's owner, and an e-mail address.
PLACEHOLDERS = ("00000000-0000-0000-0000-000000000000", "your-organisation", "@example.com")
APPROVER = "Azure AI Enterprise Network Connection Approver"
# Ids of the roles that `infra` assigns:
# learn.microsoft.com/azure/role-based-access-control/built-in-roles
ROLES: Mapping[str, str] = {
    "AcrPull": "7f951dda-4ed3-4680-a7ca-43fe172d538d",
    "AcrPush": "8311e382-0749-4cb8-b61a-304f252e45ec",
    APPROVER: "b556d68e-0be0-4f35-a333-ad7ee1ce17ea",
    "AzureML Data Scientist": "f6c7c914-8db3-469d-8ca1-694a8f32e121",
    "AzureML Metrics Writer (preview)": "635dd51f-9968-44d3-b7fb-6d9a6bd613ae",
    "Contributor": "b24988ac-6180-42a0-ab88-20f7382dd24c",
    "Key Vault Administrator": "00482a5a-887f-4fb3-b363-3b7fe8e74483",
    "Key Vault Crypto Service Encryption User": "e147488a-f6f5-4113-8e2d-b22465e65bf6",
    "Managed Identity Operator": "f1a07417-d97a-45cb-824c-7a7467783830",
    "Monitoring Reader": "43d0d8ad-25c7-4714-9337-8ba259a9fe05",
    "Reader": "acdd72a7-3385-48ef-bd42-f606fba81ae7",
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Blob Data Reader": "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1",
    "Storage File Data Privileged Contributor": "69566ab7-960f-475b-8e7c-b3118f30c6bd",
    "Storage Queue Data Contributor": "974c5e8b-45b9-4653-ba55-5f855dd0fb88",
    "Storage Table Data Contributor": "0a9a7e1f-b9d0-4cc4-a60d-0319b160aaa3",
    "Virtual Machine User Login": "fb879df8-f326-4884-b1cf-06f3ad86be52",
}
